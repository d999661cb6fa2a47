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
		o.Refused = []string{} // none
		o.Second = func(netns.Namespace) (backends.Backend, error) {
			return memory.New(&memory.Kernel{}), nil
		}
		everyField(t, o, func(*testing.T) (*fields, netns.Namespace) {
			k := &memory.Kernel{}
			return &fields{
				open:  func() (backends.Backend, error) { return memory.New(k), nil },
				touch: func() error { k.Touch(); return nil },
			}, ""
		})
	}
}
