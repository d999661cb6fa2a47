package kube

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/kernlb/kernlb/servicemodel"
)

// setClients adds a rule for all addresses of the service, from ranges. The ranges that begin with
// "!" are denied. If the ranges cannot be parsed, all clients are denied.
func setClients(s *servicemodel.Service, value string) error {
	var rule servicemodel.ClientRule
	for word := range strings.SplitSeq(value, ",") {
		text, denied := strings.CutPrefix(strings.TrimSpace(word), "!")
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return nobody(s, "must be ranges such as 10.0.0.0/8 or !10.1.0.0/16, separated by "+
				"commas")
		case denied:
			rule.Deny = append(rule.Deny, p)
		default:
			rule.Allow = append(rule.Allow, p)
		}
	}

	s.Clients = []servicemodel.ClientRule{rule}
	if err := together(&servicemodel.Service{Clients: s.Clients}); err != nil {
		return nobody(s, err.Error())
	}
	return nil
}

func nobody(s *servicemodel.Service, reason string) error {
	none := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("::/128")}
	s.Clients = []servicemodel.ClientRule{{Allow: none}}
	return errors.New(reason + "; nobody may connect until then")
}
