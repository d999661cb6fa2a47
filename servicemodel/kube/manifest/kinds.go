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

	"github.com/kernlb/kernlb/internal/suggest"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// versions are the API versions of the kinds that the loader reads.
var versions = map[string]string{
	"Service":       "v1",
	"Endpoints":     "v1",
	"Node":          "v1",
	"EndpointSlice": "discovery.k8s.io/v1",
	"ServiceCIDR":   "networking.k8s.io/v1",
}

// kindsOf returns all kinds of Kubernetes in the API versions of the kinds that the loader reads.
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

// mistaken returns the field of an object to be skipped that is probably a mistake, and why: its
// API version has no such kind, or the kind is one that the loader reads, but in another group of
// Kubernetes.
func mistaken(apiVersion, kind string) (field, reason string) {
	want, ours := versions[kind]
	if ours && ofKubernetes(group(apiVersion)) {
		return "apiVersion", "has no kind " + kind + ", must be " + want
	}
	known, has := kindsOf()[apiVersion]
	if ours || slices.Contains(known, kind) {
		return "", ""
	}
	meant, near := suggest.Nearest(kind, ofGroup(group(apiVersion)))
	if !near && has {
		meant, near = suggest.Nearest(kind, slices.Values(known))
	}
	switch {
	case near:
		return "kind", "did you mean " + meant + "?"
	case has:
		return "kind", apiVersion + " has no such kind"
	}
	return "", ""
}

// ofGroup yields the kinds of a group that the loader reads, sorted, and their lists.
func ofGroup(name string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, k := range slices.Sorted(maps.Keys(versions)) {
			if group(versions[k]) == name && (!yield(k) || !yield(k+"List")) {
				return
			}
		}
	}
}

// ofKubernetes reports whether a group belongs to Kubernetes itself: its name has no dot or ends in
// k8s.io.
func ofKubernetes(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// value loads the content of a document: an object or a list of objects.
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
	ours := of == "" || versions[of] != "" // other kinds may be lists in name only
	if items := v.get("items"); isList && items != nil && (ours || items.kind == listValue) {
		l.list(at, v, apiVersion, of, depth)
		return
	}
	l.object(at, v, apiVersion, kind)
}

// maxListDepth is how deep lists may nest.
const maxListDepth = 8

// list loads the items of a list. In a ServiceList and its like, kind is given, and the items need
// not have kind and apiVersion.
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

// object loads one object, if the loader reads its kind.
func (l *Loader) object(at place, v *value, apiVersion, kind string) {
	l.objectsSeen++
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
	f := found{at, v, kind, objectName(v, kind)}
	switch kind {
	case "Service":
		take(l, f, defaultService, (*kube.Tracker).SetService, (*kube.Tracker).DeleteService)
	case "Endpoints":
		take(l, f, func(e *corev1.Endpoints) { defaultNamespace(&e.ObjectMeta) },
			(*kube.Tracker).SetEndpoints, (*kube.Tracker).DeleteEndpoints)
	case "EndpointSlice":
		take(l, f, defaultSlice, (*kube.Tracker).SetEndpointSlice,
			(*kube.Tracker).DeleteEndpointSlice)
	case "Node":
		take(l, f, func(n *corev1.Node) { n.Namespace = "" }, (*kube.Tracker).SetNode,
			func(t *kube.Tracker, n servicemodel.Name) { t.DeleteNode(n.Name) })
	case "ServiceCIDR":
		take(l, f, func(c *networkingv1.ServiceCIDR) { c.Namespace = "" },
			(*kube.Tracker).SetServiceCIDR,
			func(t *kube.Tracker, n servicemodel.Name) { t.DeleteServiceCIDR(n.Name) })
	}
}

// found is an object in a document.
type found struct {
	place
	value *value
	kind  string
	name  string
}

// take decodes an object, fills in its defaults, and gives it to the tracker.
func take[T any, P interface {
	*T
	metav1.Object
}](l *Loader, f found, complete func(P), set func(*kube.Tracker, P) []kube.Problem,
	remove func(*kube.Tracker, servicemodel.Name)) {
	v := P(new(T))
	if problems, more := l.decoder.decode(f.value, v); len(problems) > 0 {
		for _, p := range problems {
			l.problem(f.place, p.line, f.name, p.field, p.given, p.reason)
		}
		if more > 0 {
			l.problem(f.place, f.value.line, f.name, "", "", fmt.Sprintf("%d more problems", more))
		}
		return
	}
	complete(v)
	k := key{f.kind, servicemodel.Name{Namespace: v.GetNamespace(), Name: v.GetName()}}
	if before, ok := l.seen[k.String()]; ok {
		l.add(spot{f.place, f.value.line}.warning(f.name, fmt.Sprintf(
			"was given before, at %s:%d; this one counts", before.file, before.line)))
	}
	l.seen[k.String()] = spot{f.place, f.value.line}
	l.result.Objects++
	if l.objects != nil {
		l.objects[k] = object{func(t *kube.Tracker) { set(t, v) },
			func(t *kube.Tracker) { remove(t, k.name) }}
	}
	for _, p := range set(l.tracker, v) {
		l.add(spot{f.place, f.value.lineOf(p.Field)}.problem(p))
	}
}

// objectName returns the kind and name of v, such as "Service default/web". It leaves out missing
// parts.
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

func (l *Loader) add(p kube.Problem) { l.result.Problems = append(l.result.Problems, p) }

// problem reports an error in a value that is not decoded yet and may be anything.
func (l *Loader) problem(at place, line int, object, field, value, reason string) {
	l.add(spot{at, line}.problem(kube.Problem{FieldError: &servicemodel.FieldError{
		Object: object, Field: field, Value: show(value), Reason: reason}}))
}

// warning returns a warning about a whole object.
func (s spot) warning(object, reason string) kube.Problem {
	return s.problem(kube.Problem{Warning: true,
		FieldError: &servicemodel.FieldError{Object: object, Reason: reason}})
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
