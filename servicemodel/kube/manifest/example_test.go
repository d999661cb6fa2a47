package manifest_test

import (
	"fmt"
	"strings"

	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

//revive:disable:line-length-limit a line of output cannot be wrapped
func ExampleLoader() {
	tracker := kube.NewTracker(&kube.Config{Strict: true})
	loader := manifest.NewLoader(tracker)
	err := loader.Read("web.yaml", strings.NewReader(`
apiVersion: v1
kind: Service
metadata:
  name: web
spec:
  clusterIP: 10.96.0.10
  ports:
  - name: http
    port: 80
---
apiVersion: v1
kind: Service
metadata:
  name: db
spec:
  clusterIP: 10.96.0.11
  ports:
  - name: sql
    port: 543210
---
apiVersion: apps/v1
kind: Deployment
`))
	if err != nil {
		fmt.Println(err)
		return
	}

	result := loader.Result()
	fmt.Println(result.Err())
	fmt.Println("skipped:", result.SkippedKinds())
	// Output:
	// web.yaml:20: document 2: Service default/db: spec.ports[0].port: 543210: must be between 1 and 65535
	// skipped: 1 apps/v1 Deployment
}
