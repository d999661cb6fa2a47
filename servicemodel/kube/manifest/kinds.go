package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, yet people have manifests with them

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
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

// readers has a reader for each kind that the loader reads, and the API version of the kind.
var readers = map[string]struct {
	version string
	read    func(l *Loader, v *value, kind string)
}{
	"Service": {"v1", reader(defaultService, (*kube.Tracker).SetService,
		(*kube.Tracker).DeleteService)},
	"Endpoints": {"v1", reader(func(e *corev1.Endpoints) { defaultNamespace(&e.ObjectMeta) },
		(*kube.Tracker).SetEndpoints, (*kube.Tracker).DeleteEndpoints)},
	"EndpointSlice": {"discovery.k8s.io/v1", reader(defaultSlice,
		(*kube.Tracker).SetEndpointSlice, (*kube.Tracker).DeleteEndpointSlice)},
	// An empty Node, because DeleteNode keeps the tracker's knowledge of the node.
	"Node": {"v1", reader(func(n *corev1.Node) { n.Namespace = "" }, (*kube.Tracker).SetNode,
		func(t *kube.Tracker, n servicemodel.Name) {
			t.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}})
		})},
	"ServiceCIDR": {"networking.k8s.io/v1", reader(
		func(c *networkingv1.ServiceCIDR) { c.Namespace = "" }, (*kube.Tracker).SetServiceCIDR,
		func(t *kube.Tracker, n servicemodel.Name) { t.DeleteServiceCIDR(n.Name) })},
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

// mistaken returns the field of a skipped object that is probably a mistake, and the reason: its
// API version has no such kind, or the loader reads the kind, but in a different group of
// Kubernetes.
func mistaken(apiVersion, kind string) (field, reason string) {
	r, ours := readers[kind]
	if ours && ofKubernetes(group(apiVersion)) {
		return "apiVersion", "has no kind " + kind + ", must be " + r.version
	}
	known, has := kindsOf()[apiVersion]
	if ours || slices.Contains(known, kind) {
		return "", ""
	}
	var likely []string // the kinds of the group that the loader reads, and their lists
	for _, name := range slices.Sorted(maps.Keys(readers)) {
		if group(readers[name].version) == group(apiVersion) {
			likely = append(likely, name, name+"List")
		}
	}

	for _, names := range [][]string{likely, known} {
		if meant, ok := suggest.Nearest(kind, slices.Values(names)); ok {
			return "kind", "did you mean " + meant + "?"
		}
	}

	if has {
		return "kind", apiVersion + " has no such kind"
	}
	return "", ""
}

// ofKubernetes reports whether a group belongs to Kubernetes itself: its name has no dot or ends in
// k8s.io.
func ofKubernetes(group string) bool {
	return !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// value loads the content of a document: an object or a list of objects.
func (l *Loader) value(v *value, depth int) {
	if v.kind != objectValue {
		l.problem(v.line, "", "", v.text, "is "+v.kind.String()+", must be a Kubernetes object")
		return
	}

	apiVersion, kind := v.textOf("apiVersion"), v.textOf("kind")
	for _, name := range []string{"apiVersion", "kind"} {
		if v.textOf(name) == "" {
			l.problem(v.line, objectName(v, kind), name, "", "must be given, as text")
			return
		}
	}

	of, isList := strings.CutSuffix(kind, "List")
	ours := of == "" || readers[of].read != nil // other kinds may be lists only by name
	if items := v.get("items"); isList && items != nil && (ours || items.kind == listValue) {
		l.list(v, apiVersion, of, depth)
		return
	}

	l.object(v, apiVersion, kind)
}

// maxListDepth is the greatest depth of nested lists.
const maxListDepth = 8

// list loads the items of a list. kind is set for a ServiceList and similar lists, whose items need
// not have kind and apiVersion.
func (l *Loader) list(v *value, apiVersion, kind string, depth int) {
	items, name := v.get("items"), show(kind+"List")
	switch {
	case items.kind == nullValue:
		return
	case items.kind != listValue:
		l.problem(items.line, name, "items", "", "is "+items.kind.String()+", must be a list")
		return
	case depth >= maxListDepth:
		l.problem(v.line, name, "items", "",
			fmt.Sprintf("more than %d lists in one another", maxListDepth))
		return
	}

	for _, item := range items.items {
		if kind == "" || item.kind != objectValue || item.get("kind") != nil {
			l.value(item, depth+1)
			continue
		}

		l.object(item, apiVersion, kind)
	}
}

// object loads one object, if the loader reads its kind.
func (l *Loader) object(v *value, apiVersion, kind string) {
	l.found++
	r, known := readers[kind]
	if !known || group(apiVersion) != group(r.version) {
		if field, reason := mistaken(apiVersion, kind); reason != "" {
			l.problem(v.lineOf(field), objectName(v, kind), field, v.textOf(field), reason)
			return
		}

		l.result.Skipped[show(apiVersion)+" "+show(kind)]++
		return
	}

	if apiVersion != r.version {
		l.problem(v.lineOf("apiVersion"), objectName(v, kind), "apiVersion", apiVersion,
			"is not supported, must be "+r.version)
		return
	}

	r.read(l, v, kind)
}

// maxProblems limits the reported problems of one object.
const maxProblems = 100

// reader returns a function that decodes an object, fills in its defaults, and gives it to the
// tracker.
func reader[T any, P interface {
	*T
	metav1.Object
}](complete func(P), set func(*kube.Tracker, P) []kube.Problem,
	remove func(*kube.Tracker, servicemodel.Name)) func(*Loader, *value, string) {
	return func(l *Loader, v *value, kind string) {
		shown, problems := objectName(v, kind), 0
		l.decoder.report = func(line int, field, given, reason string) {
			if problems++; problems <= maxProblems {
				l.problem(line, shown, field, given, reason)
			}
		}

		o := P(new(T))
		l.decoder.fill(v, reflect.ValueOf(o).Elem(), nil)
		if more := problems - maxProblems; more > 0 {
			l.problem(v.line, shown, "", "", fmt.Sprintf("%d more problems", more))
		}
		if problems > 0 {
			return
		}
		complete(o)
		n := servicemodel.Name{Namespace: o.GetNamespace(), Name: o.GetName()}
		name := kind + " " + strings.TrimPrefix(n.String(), "/") // a Node has no namespace
		now := object{at: l.at(v.line)}
		if l.forSet {
			now.set = func(t *kube.Tracker) { set(t, o) }
			now.remove = func(t *kube.Tracker) { remove(t, n) }
		}

		if before, ok := l.objects[name]; ok {
			l.add(now.at.warning(shown, fmt.Sprintf("was given before, at %s:%d; this one counts",
				before.at.file, before.at.line)))
		}

		l.objects[name] = now
		l.result.Objects++
		for _, p := range set(l.tracker, o) {
			l.add(l.at(v.lineOf(p.Field)).problem(p))
		}
	}
}

// objectName returns the kind and name of v, such as "Service default/web", for problems. It leaves
// out missing parts.
func objectName(v *value, kind string) string {
	if kind == "" {
		return ""
	}
	meta := v.get("metadata")
	name := show(cmp.Or(meta.textOf("name"), "(without a name)"))
	if kind != "Node" && kind != "ServiceCIDR" {
		name = show(cmp.Or(meta.textOf("namespace"), metav1.NamespaceDefault)) + "/" + name
	}
	return show(kind) + " " + name
}

// group returns the group of an API version, empty for the core group.
func group(apiVersion string) string {
	return apiVersion[:max(0, strings.IndexByte(apiVersion, '/'))]
}
