package kube_test

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kernlb/kernlb/internal/test/growth"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// The cost grows linearly with the number of slices when they are added and when they are removed:
// slices of one service, of separate services, and of unknown services.
func TestTimeAndMemoryGrowAsSlicesDo(t *testing.T) {
	for name, service := range map[string]func(i int) string{
		"one service":       func(int) string { return "web" },
		"services":          func(i int) string { return fmt.Sprint("web-", i) },
		"misspelt services": func(i int) string { return fmt.Sprint("wbe-", i) },
	} {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 1<<15, func(n int) (l []*discoveryv1.EndpointSlice) {
				for i := range n {
					s := webSlice(fmt.Sprint("slice-", i), fmt.Sprintf("10.%d.%d.1", i>>8, i&255))
					s.Labels[discoveryv1.LabelServiceName] = service(i)
					l = append(l, s)
				}

				return l
			}, func(l []*discoveryv1.EndpointSlice) {
				tracker := kube.NewTracker(&kube.Config{Strict: true})
				for i, s := range l {
					tracker.SetEndpointSlice(s)
					web := webService()
					web.Name = fmt.Sprint("web-", i)
					tracker.SetService(web)
				}

				tracker.State()
				tracker.Unmatched()
				tracker.Problems()
				for _, s := range l {
					tracker.DeleteEndpointSlice(servicemodel.Name{Namespace: s.Namespace,
						Name: s.Name})
				}

				tracker.State()
			})
		})
	}
}
