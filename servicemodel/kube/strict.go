package kube

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A strict tracker also refuses objects that kube-proxy accepts but an API server would refuse. The
// files strict*.go follow ValidateServiceCreate, ValidateLoadBalancerStatus and
// ValidateEndpointsCreate of k8s.io/kubernetes/pkg/apis/core/validation and
// ValidateEndpointSliceCreate of k8s.io/kubernetes/pkg/apis/discovery/validation, version 1.36.
// Fields that an API server fills in may be missing. Checks against other objects (addresses,
// ranges of node ports) are left out. internal/test/peers/validation compares these files with the
// API server's validation.

// refuse reports errors of the validation library: one for each field, unless a problem of the
// field has already been reported.
func (r *report) refuse(errs field.ErrorList) {
	for _, e := range errs {
		if r.mentions(e.Field) {
			continue
		}
		value, reason := "", e.Detail
		switch v := e.BadValue.(type) {
		case string:
			value = v
		case int:
			value = itoa(int32(v))
		}

		switch {
		case e.Type == field.ErrorTypeRequired && reason == "":
			reason = "must be given"
		case e.Type == field.ErrorTypeDuplicate:
			reason = "is given twice"
		case reason == "":
			reason = e.ErrorBody()
		}

		r.invalid(e.Field, value, "%s", reason)
	}
}

// must reports a field if a check of its value returned messages, unless a problem of the field has
// already been reported.
func (r *report) must(at, value string, messages ...string) {
	if len(messages) > 0 && !r.mentions(at) {
		r.invalid(at, value, "%s", messages[0])
	}
}

// rule is a condition under which a field is wrong.
type rule struct {
	wrong             bool
	at, value, reason string
}

// check reports the fields that are wrong.
func (r *report) check(rules ...rule) {
	for _, u := range rules {
		if u.wrong {
			r.must(u.at, u.value, u.reason)
		}
	}
}

// refuseMeta checks the metadata of an object in a namespace.
func (r *report) refuseMeta(m *metav1.ObjectMeta, name func(string, bool) []string) {
	if m.Name == "" || m.Namespace == "" {
		return // already reported
	}
	r.refuse(apivalidation.ValidateObjectMeta(m, true, name, field.NewPath("metadata")))
}

// refuseAddress checks that an address has the notation that API servers of 1.36 require, without
// leading zeros and not as an IPv4-mapped address (StrictIPCIDRValidation).
func (r *report) refuseAddress(at, value string) {
	r.refuse(validation.IsValidIPForLegacyField(asPath(at), value, true, nil))
}

// refuseRoutable is refuseAddress for an address that must also be valid for endpoints.
func (r *report) refuseRoutable(at, value string) {
	r.refuseAddress(at, value)
	if _, err := parseRoutable(value); err != nil {
		r.must(at, value, err.Error())
	}
}

func asPath(at string) *field.Path { return field.NewPath(at) }

// refuseHostAndNode checks the host and node names of the address of an endpoint.
func (r *report) refuseHostAndNode(at string, host, node *string) {
	if host != nil && *host != "" {
		r.must(at+"hostname", *host, validation.IsDNS1123Label(*host)...)
	}
	if node != nil {
		r.must(at+"nodeName", *node, validation.IsDNS1123Subdomain(*node)...)
	}
}

// refuseAppProtocol checks the application protocol of a port.
func (r *report) refuseAppProtocol(at string, p *string) {
	if p != nil {
		r.must(at+"appProtocol", *p, validation.IsQualifiedName(*p)...)
	}
}
