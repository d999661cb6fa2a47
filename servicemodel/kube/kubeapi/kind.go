package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel"
	"github.com/kernlb/kernlb/servicemodel/kube"
)

// kind is one of the watched kinds of objects.
type kind struct {
	name    string
	example runtime.Object
	source  cache.ListerWatcher
	// optional says that a state can be built without objects of this kind.
	optional bool
	// set and remove pass objects to the tracker.
	set    func(any) []kube.Problem
	remove func(servicemodel.Name)

	informer cache.SharedIndexInformer
	handlers cache.ResourceEventHandlerRegistration
	// err and since become the fields of KindStatus. Source.mu guards them.
	err   error
	since time.Time
}

// lister is the interface that all typed clients have.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// newKind returns a kind of objects, limited to the objects that match the selectors; an empty
// selector matches all.
func newKind[T, L runtime.Object](
	s *Source, client kubernetes.Interface, name string, example T, from lister[L],
	labels, fields string, set func(T) []kube.Problem, remove func(servicemodel.Name),
) *kind {
	k := &kind{name: name, example: example, remove: remove,
		set: func(o any) []kube.Problem { return set(o.(T)) }}
	selected := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = labels, fields
		return o
	}

	k.source = cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(
			ctx context.Context, o metav1.ListOptions,
		) (runtime.Object, error) {
			return from.List(ctx, selected(o))
		},
		WatchFuncWithContext: func(
			ctx context.Context, o metav1.ListOptions,
		) (watch.Interface, error) {
			w, err := from.Watch(ctx, selected(o))
			if err == nil {
				s.works(k)
			}
			return w, err
		},
	}, client)
	return k
}

// kindsOf returns the watched kinds, with the same selectors as in kube-proxy
// (cmd/kube-proxy/app/server.go).
func (s *Source) kindsOf(client kubernetes.Interface) ([]*kind, error) {
	withIP := fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	kinds := []*kind{
		newKind(s, client, "Service", &corev1.Service{}, client.CoreV1().Services(""),
			"!service.kubernetes.io/service-proxy-name", withIP, s.tracker.SetService,
			s.tracker.DeleteService),
		newKind(s, client, "EndpointSlice", &discoveryv1.EndpointSlice{},
			client.DiscoveryV1().EndpointSlices(""), "!"+corev1.IsHeadlessService, "",
			s.tracker.SetEndpointSlice, s.tracker.DeleteEndpointSlice),
	}
	if name := s.cfg.Tracker.Node.Name; name != "" {
		set := func(n *corev1.Node) []kube.Problem {
			p := s.tracker.SetNode(n)
			s.node.see(n)
			return p
		}

		remove := func(n servicemodel.Name) {
			s.tracker.DeleteNode(n.Name)
			s.node.eligible.Store(false)
		}

		own := fields.OneTermEqualSelector("metadata.name", name).String()
		kinds = append(kinds, newKind(s, client, "Node", &corev1.Node{}, client.CoreV1().Nodes(),
			"", own, set, remove))
	}

	if has, err := hasServiceCIDRs(client); err != nil || !has {
		return kinds, err
	}
	k := newKind(s, client, "ServiceCIDR", &networkingv1.ServiceCIDR{},
		client.NetworkingV1().ServiceCIDRs(), "", "", s.tracker.SetServiceCIDR,
		func(n servicemodel.Name) { s.tracker.DeleteServiceCIDR(n.Name) })
	k.optional = true
	return append(kinds, k), nil
}

// hasServiceCIDRs asks the server whether it has ServiceCIDRs of version v1.
func hasServiceCIDRs(client kubernetes.Interface) (bool, error) {
	version := networkingv1.SchemeGroupVersion.String()
	l, err := client.Discovery().ServerResourcesForGroupVersion(version)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for %s: %w", version, err)
	}
	return slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool {
		return r.Name == "servicecidrs"
	}), nil
}

// start creates the informer of the kind, which runs with [Source.Run].
func (s *Source) start(k *kind) (err error) {
	k.informer = cache.NewSharedIndexInformerWithOptions(k.source, k.example,
		cache.SharedIndexInformerOptions{ResyncPeriod: s.cfg.Resync, ObjectDescription: k.name})
	if err := k.informer.SetTransform(slim); err != nil {
		return err
	}
	onError := func(ctx context.Context, _ *cache.Reflector, err error) { s.failed(ctx, k, err) }
	if err := k.informer.SetWatchErrorHandlerWithContext(onError); err != nil {
		return err
	}
	set := func(o any) { s.set(k, o) }
	k.handlers, err = k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: set, UpdateFunc: func(_, o any) { set(o) },
		DeleteFunc: func(o any) { s.remove(k, o) },
	})
	return err
}

// slim removes the large parts of an object that do not affect states.
func slim(o any) (any, error) {
	if m, err := meta.Accessor(o); err == nil {
		m.SetManagedFields(nil)
	}
	if n, ok := o.(*corev1.Node); ok {
		n.Status.Images = nil
	}
	return o, nil
}

func (s *Source) set(k *kind, o any) {
	for _, p := range k.set(o) {
		s.log.Warn("object with a problem", logkey.Severity, p.Severity(),
			logkey.Problem, p.Error())
	}

	s.touch()
}

// remove handles the deletion of an object. If the watch missed the deletion, o has only the
// object's name.
func (s *Source) remove(k *kind, o any) {
	if name, err := cache.DeletionHandlingObjectToName(o); err == nil {
		k.remove(servicemodel.Name(name))
	}
	s.touch()
}

// works records that the watch of a kind works.
func (s *Source) works(k *kind) {
	s.mu.Lock()
	before := k.err
	k.err, k.since = nil, time.Time{}
	s.mu.Unlock()
	if before != nil {
		s.log.Info("watch works again", logkey.Kind, k.name)
	}
}

// failed records the reason why a kind cannot be listed or watched. The end and the expiry of a
// watch are normal and not a failure.
func (s *Source) failed(ctx context.Context, k *kind, err error) {
	if ctx.Err() != nil || errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) ||
		apierrors.IsGone(err) {
		return
	}

	err = fmt.Errorf("list and watch %s: %w", k.name, err)
	s.mu.Lock()
	repeated := k.err != nil && k.err.Error() == err.Error()
	if k.err == nil {
		k.since = time.Now()
	}
	k.err = err
	s.mu.Unlock()
	if !repeated {
		s.log.WarnContext(ctx, "watch failed", logkey.Kind, k.name, logkey.Error, err)
	}
}
