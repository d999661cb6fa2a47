package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, yet people have manifests with them

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kernlb/kernlb/internal/spell"
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

// kindsOf returns the kinds that Kubernetes has in the API versions of those that are taken.
var kindsOf = sync.OnceValue(func() map[string][]string {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme,
		networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // the API's own types
		}
	}
	kinds := map[string][]string{}
	for k := range scheme.AllKnownTypes() {
		v := k.GroupVersion().String()
		kinds[v] = append(kinds[v], k.Kind)
	}
	for _, l := range kinds {
		slices.Sort(l)
	}
	return kinds
})

// mistaken says which field of an object that would be skipped cannot be meant, and why: its kind
// is none that its API version has, or one that is taken stands in another group of Kubernetes.
func mistaken(apiVersion, kind string) (field, reason string) {
	want, ours := versions[kind]
	if ours && ofKubernetes(group(apiVersion)) {
		return "apiVersion", "has no kind " + kind + ", must be " + want
	}
	known, has := kindsOf()[apiVersion]
	if ours || slices.Contains(known, kind) {
		return "", ""
	}
	meant, near := spell.Nearest(kind, ofGroup(group(apiVersion)))
	if !near && has {
		meant, near = spell.Nearest(kind, slices.Values(known))
	}
	switch {
	case near:
		return "kind", "did you mean " + meant + "?"
	case has:
		return "kind", apiVersion + " has no such kind"
	}
	return "", ""
}

// ofGroup yields the kinds that are taken of a group, sorted, and their lists.
func ofGroup(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, k := range slices.Sorted(maps.Keys(versions)) {
			if group(versions[k]) == name && (!yield(k) || !yield(k+"List")) {
				return
			}
		}
	}
}

// ofKubernetes reports whether a group is one of Kubernetes itself, whose names have no dot or end
// in k8s.io.
func ofKubernetes(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
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
	if !known || group(apiVersion) != group(want) {
		if field, reason := mistaken(apiVersion, kind); reason != "" {
			l.problem(at, v.lineOf(field), objectName(v, kind), field, v.textOf(field), reason)
			return
		}
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
	if before, ok := l.seen[f.name]; ok {
		l.add(f.place, f.value.line, kube.Warning, f.name, "", "",
			fmt.Sprintf("was given before, at %s:%d; this one counts", before.file, before.line))
	}
	l.seen[f.name] = spot{f.place, f.value.line}
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
