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

// kind is one kind of objects that is watched.
type kind struct {
	name    string
	example runtime.Object
	source  cache.ListerWatcher
	// optional says that a state can be made without objects of this kind.
	optional bool
	// set and remove tell the tracker.
	set    func(any) []kube.Problem
	remove func(servicemodel.Name)

	informer cache.SharedIndexInformer
	handlers cache.ResourceEventHandlerRegistration
	// err and since become the fields of KindStatus. Source.mu guards them.
	err   error
	since time.Time
}

// lister is the interface that the typed clients have in common.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch lists and watches the objects that match the selectors; an empty selector matches all.
// It calls works when a watch has begun.
func listWatch[L runtime.Object](
	client kubernetes.Interface, from lister[L], labels, fields string, works func(),
) cache.ListerWatcher {
	selected := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = labels, fields
		return o
	}
	lw := &cache.ListWatch{
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
				works()
			}
			return w, err
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, client)
}

// The same selectors as in kube-proxy (cmd/kube-proxy/app/server.go).
const (
	notAnotherProxys = "!service.kubernetes.io/service-proxy-name"
	notHeadless      = "!" + corev1.IsHeadlessService
)

func (s *Source) services(client kubernetes.Interface) *kind {
	k := &kind{name: "Service", example: &corev1.Service{}, remove: s.tracker.DeleteService}
	k.set = func(o any) []kube.Problem { return s.tracker.SetService(o.(*corev1.Service)) }
	withIP := fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	k.source = listWatch(client, client.CoreV1().Services(""), notAnotherProxys, withIP,
		func() { s.works(k) })
	return k
}

func (s *Source) slices(client kubernetes.Interface) *kind {
	k := &kind{name: "EndpointSlice", example: &discoveryv1.EndpointSlice{},
		remove: s.tracker.DeleteEndpointSlice}
	k.set = func(o any) []kube.Problem {
		return s.tracker.SetEndpointSlice(o.(*discoveryv1.EndpointSlice))
	}
	k.source = listWatch(client, client.DiscoveryV1().EndpointSlices(""), notHeadless, "",
		func() { s.works(k) })
	return k
}

func (s *Source) nodes(client kubernetes.Interface) *kind {
	k := &kind{name: "Node", example: &corev1.Node{}}
	k.set = func(o any) []kube.Problem {
		p := s.tracker.SetNode(o.(*corev1.Node))
		s.node.see(o.(*corev1.Node))
		return p
	}
	k.remove = func(n servicemodel.Name) {
		s.tracker.DeleteNode(n.Name)
		s.node.eligible.Store(false)
	}
	own := fields.OneTermEqualSelector("metadata.name", s.cfg.Tracker.Node.Name).String()
	k.source = listWatch(client, client.CoreV1().Nodes(), "", own, func() { s.works(k) })
	return k
}

func (s *Source) serviceCIDRs(client kubernetes.Interface) *kind {
	k := &kind{name: "ServiceCIDR", example: &networkingv1.ServiceCIDR{}, optional: true}
	k.set = func(o any) []kube.Problem {
		return s.tracker.SetServiceCIDR(o.(*networkingv1.ServiceCIDR))
	}
	k.remove = func(n servicemodel.Name) { s.tracker.DeleteServiceCIDR(n.Name) }
	k.source = listWatch(client, client.NetworkingV1().ServiceCIDRs(), "", "",
		func() { s.works(k) })
	return k
}

// hasServiceCIDRs asks the server whether it has ServiceCIDRs of version v1.
func hasServiceCIDRs(client kubernetes.Interface) (bool, error) {
	version := networkingv1.SchemeGroupVersion.String()
	l, err := client.Discovery().ServerResourcesForGroupVersion(version)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(l.APIResources, func(r metav1.APIResource) bool {
		return r.Name == "servicecidrs"
	}), nil
}

// start makes the informer of the kind, which runs with [Source.Run].
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

// slim removes from an object the large parts on which no state depends.
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

// works notes that a kind is watched.
func (s *Source) works(k *kind) {
	s.mu.Lock()
	before := k.err
	k.err, k.since = nil, time.Time{}
	s.mu.Unlock()
	if before != nil {
		s.log.Info("watch works again", logkey.Kind, k.name)
	}
}

// failed notes why a kind cannot be listed or watched. The end and the expiry of a watch are normal
// and no failure.
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
