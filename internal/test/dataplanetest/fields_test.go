package dataplanetest

import (
	"testing"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/dataplane/netns"
)

func TestEveryFieldInMemory(t *testing.T) {
	t.Parallel()
	for _, o := range []FieldsOptions{{}, {OneValue: true}} {
		k, second := &memory.Kernel{}, &memory.Kernel{}
		o.Refused = []string{} // none
		o.Second = func(netns.Namespace) (backends.Backend, error) {
			return memory.New(second), nil
		}
		everyField(t, &fields{
			open:  func() (backends.Backend, error) { return memory.New(k), nil },
			touch: func() error { k.Touch(); return nil },
		}, "", o)
	}
}
