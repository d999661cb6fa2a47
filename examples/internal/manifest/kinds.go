package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, yet people have manifests with them

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// versions are the API versions of the kinds that are taken.
var versions = map[string]string{
	"Service":       "v1",
	"Endpoints":     "v1",
	"Node":          "v1",
	"EndpointSlice": "discovery.k8s.io/v1",
	"ServiceCIDR":   "networking.k8s.io/v1",
}

// value takes what a document holds: an object or a list of them.
func (l *Loader) value(at place, v *value, depth int) {
	if v.kind != objectValue {
		l.problem(at, v.line, "", "", v.text, "is "+v.kind.String()+", must be a Kubernetes object")
		return
	}
	apiVersion, kind := v.textOf("apiVersion"), v.textOf("kind")
	for _, name := range []string{"apiVersion", "kind"} {
		if v.textOf(name) == "" {
			l.problem(at, v.line, objectName(v, kind), name, "", "must be given, as text")
			return
		}
	}
	of, isList := strings.CutSuffix(kind, "List")
	ours := of == "" || versions[of] != "" // others may be lists in name only
	if items := v.get("items"); isList && items != nil && (ours || items.kind == listValue) {
		l.list(at, v, apiVersion, of, depth)
		return
	}
	l.object(at, v, apiVersion, kind)
}

// maxListDepth is how deep lists may be in one another.
const maxListDepth = 8

// list takes the items of a list. Those of a ServiceList and its like, whose kind is given, need
// not say what they are.
func (l *Loader) list(at place, v *value, apiVersion, kind string, depth int) {
	items := v.get("items")
	switch {
	case items.kind == nullValue:
		return
	case items.kind != listValue:
		l.problem(at, items.line, show(kind+"List"), "items", "",
			"is "+items.kind.String()+", must be a list")
		return
	case depth >= maxListDepth:
		l.problem(at, v.line, show(kind+"List"), "items", "",
			fmt.Sprintf("more than %d lists in one another", maxListDepth))
		return
	}
	for _, item := range items.items {
		if kind == "" || item.kind != objectValue || item.get("kind") != nil {
			l.value(at, item, depth+1)
			continue
		}
		l.object(at, item, apiVersion, kind)
	}
}

// object takes one object, if it is of a kind that is taken.
func (l *Loader) object(at place, v *value, apiVersion, kind string) {
	want, known := versions[kind]
	if !known {
		for k := range versions {
			if strings.EqualFold(k, kind) {
				l.problem(at, v.lineOf("kind"), objectName(v, k), "kind", kind,
					"did you mean "+k+"?")
				return
			}
		}
	}
	if !known || group(apiVersion) != group(want) {
		l.result.Skipped[show(apiVersion)+" "+show(kind)]++
		return
	}
	if apiVersion != want {
		l.problem(at, v.lineOf("apiVersion"), objectName(v, kind), "apiVersion", apiVersion,
			"is not supported, must be "+want)
		return
	}
	f := found{at, v, objectName(v, kind)}
	t := l.objects
	switch kind {
	case "Service":
		take(l, f, defaultService, t.SetService)
	case "Endpoints":
		take(l, f, func(e *corev1.Endpoints) { defaultNamespace(&e.ObjectMeta) }, t.SetEndpoints)
	case "EndpointSlice":
		take(l, f, defaultSlice, t.SetEndpointSlice)
	case "Node":
		take(l, f, func(*corev1.Node) {}, t.SetNode)
	case "ServiceCIDR":
		take(l, f, func(*networkingv1.ServiceCIDR) {}, t.SetServiceCIDR)
	}
}

// found is an object in a document.
type found struct {
	place
	value *value
	name  string
}

// take decodes an object, completes it, and gives it to the tracker.
func take[T any](l *Loader, f found, complete func(*T), set func(*T) []kube.Problem) {
	object := new(T)
	if problems := l.decoder.decode(f.value, object); len(problems) > 0 {
		for _, p := range problems {
			l.problem(f.place, p.line, f.name, p.field, p.given, p.reason)
		}
		return
	}
	here := fmt.Sprintf("%s:%d", f.file, f.value.line)
	if before, ok := l.seen[f.name]; ok {
		l.add(f.place, f.value.line, kube.Warning, f.name, "", "",
			"was given before, at "+before+"; this one counts")
	}
	l.seen[f.name] = here
	l.result.Objects++
	complete(object)
	for _, p := range set(object) {
		l.add(f.place, f.value.lineOf(p.Field), p.Severity, p.Object, p.Field, p.Value, p.Reason)
	}
}

// objectName returns the kind and name of v, such as "Service default/web", as far as it has them.
func objectName(v *value, kind string) string {
	if kind == "" {
		return ""
	}
	meta := v.get("metadata")
	name, namespace := meta.textOf("name"), meta.textOf("namespace")
	if name == "" {
		name = "(without a name)"
	}
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if kind == "Node" || kind == "ServiceCIDR" {
		return kind + " " + show(name)
	}
	return show(kind) + " " + show(namespace) + "/" + show(name)
}

// group returns the group of an API version, empty for the core group.
func group(apiVersion string) string {
	g, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		return ""
	}
	return g
}

func (l *Loader) add(at place, line int, severity kube.Severity, object, field, value,
	reason string) {
	l.result.Problems = append(l.result.Problems, Problem{
		File: at.file, Line: line, Document: at.document, Severity: severity,
		Object: object, Field: field, Value: value, Reason: reason,
	})
}

// problem reports an error in what was not decoded yet, whose value may be anything.
func (l *Loader) problem(at place, line int, object, field, value, reason string) {
	l.add(at, line, kube.Error, object, field, show(value), reason)
}

// unreadable reports a document that could not be parsed.
func (l *Loader) unreadable(at place, err error) {
	line := 1
	var s *syntaxError
	if errors.As(err, &s) {
		line = s.line
	}
	l.problem(at, line, "", "", "", err.Error())
}
