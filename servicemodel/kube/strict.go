package kube

import (
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Strict trackers also refuse what kube-proxy takes and an API server would not: the files
// strict*.go follow ValidateServiceCreate, ValidateLoadBalancerStatus and ValidateEndpointsCreate
// of k8s.io/kubernetes/pkg/apis/core/validation and ValidateEndpointSliceCreate of
// k8s.io/kubernetes/pkg/apis/discovery/validation, version 1.36. What an API server fills in may be
// missing. What it knows of other objects (addresses, ranges of node ports) is not asked.
// internal/peers/validation holds both against each other.

// refuse reports errors of the validation library, of each field one and only where nothing is
// said yet.
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

// must reports a field whose value the messages of a check find wrong.
func (r *report) must(at, value string, messages []string) {
	if len(messages) > 0 && !r.mentions(at) {
		r.invalid(at, value, "%s", messages[0])
	}
}

// mentions reports whether an error about a field was reported.
func (r *report) mentions(at string) bool {
	for _, p := range r.problems {
		if p.Severity == Error && p.Field == at {
			return true
		}
	}
	return false
}

// refuseMeta checks the metadata of an object in a namespace.
func (r *report) refuseMeta(m *metav1.ObjectMeta, name func(string, bool) []string) {
	if m.Name == "" || m.Namespace == "" {
		return // said already
	}
	r.refuse(apivalidation.ValidateObjectMeta(m, true, name, field.NewPath("metadata")))
}

// refuseAddress checks that an address is written as API servers of 1.36 want it, without leading
// zeros and not as an IPv4-mapped one (StrictIPCIDRValidation).
func (r *report) refuseAddress(at, value string) {
	r.refuse(validation.IsValidIPForLegacyField(asPath(at), value, true, nil))
}

// refuseRoutable does so for an address that must be fit for endpoints.
func (r *report) refuseRoutable(at, value string) {
	r.refuseAddress(at, value)
	if _, err := parseRoutable(value); err != nil {
		r.must(at, value, []string{err.Error()})
	}
}

// asPath makes a path of its text.
func asPath(at string) *field.Path { return field.NewPath(at) }

// refuseHostAndNode checks the names that go with the address of an endpoint.
func (r *report) refuseHostAndNode(at string, host, node *string) {
	if host != nil && *host != "" {
		r.must(at+"hostname", *host, validation.IsDNS1123Label(*host))
	}
	if node != nil {
		r.must(at+"nodeName", *node, validation.IsDNS1123Subdomain(*node))
	}
}

// refuseAppProtocol checks the application protocol of a port.
func (r *report) refuseAppProtocol(at string, p *string) {
	if p != nil {
		r.must(at+"appProtocol", *p, validation.IsQualifiedName(*p))
	}
}
