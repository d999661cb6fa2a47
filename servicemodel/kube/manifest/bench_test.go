package manifest_test

import (
	"strings"
	"testing"

	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

func BenchmarkLoad(b *testing.B) {
	for name, document := range map[string]string{"YAML": service + "---\n" + slice + "---\n",
		"JSON": serviceJSON + "\n"} {
		b.Run(name, func(b *testing.B) {
			text := strings.Repeat(document, 1000)
			b.SetBytes(int64(len(text)))
			for range b.N {
				loader := manifest.NewLoader(kube.NewTracker(&kube.Config{Strict: true}))
				if err := loader.Read("m.yaml", strings.NewReader(text)); err != nil ||
					loader.Result().Err() != nil {
					b.Fatal(err, loader.Result().Err())
				}
			}
		})
	}
}
