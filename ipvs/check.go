package ipvs

import (
	"errors"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/servicemodel"
)

// check refuses what cannot be expressed.
func check(c *servicemodel.ChangeSet) error {
	var errs []error
	refuse := func(object, field, value, hint string) {
		errs = append(errs, &dataplane.UnsupportedError{Backend: Name, Object: object, Field: field, Value: value, Hint: hint})
	}
	for _, fc := range c.Frontends {
		fe := fc.New
		if fe == nil {
			continue
		}
		object := "service " + fe.Service.String()
		switch fe.Masquerade {
		case 0, servicemodel.FromAnywhere, servicemodel.FromHost, servicemodel.FromHost | servicemodel.FromOutside:
		default:
			refuse(object, "masquerade", fe.Masquerade.String(), "")
		}
		if fe.Sources != nil && fe.Key.NodePort() {
			refuse(object, "sources", "on a node port", "")
		}
		if n := len(fe.Service.String()) + maxCommentWords; n > 251 {
			refuse(object, "name", fe.Service.String(), "it is too long for a comment")
		}
	}
	for _, pc := range c.Pools {
		if p := pc.New; p != nil && p.Scheduler != servicemodel.SchedulerDefault && !schedulers[p.Scheduler] {
			refuse("service "+p.ID.Service.String(), "scheduler", string(p.Scheduler), "the nftables and iptables backends can")
		}
	}
	if c.Rules != nil && c.Rules.New.LocalhostNodePorts {
		refuse("node", "localhostNodePorts", "true", "the iptables backend can")
	}
	return errors.Join(errs...)
}

// maxCommentWords is how long the words of a comment behind the service's name are at most.
const maxCommentWords = 100
