package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/kernlb/kernlb/servicemodel"
)

// reporter is the reporting controller of the events.
const reporter = "kernlb-kubeproxy"

// longestNote is the API's limit for the note of an event.
const longestNote = 1024

// recorder makes Events in a goroutine of its own. close ends it.
type recorder struct {
	broadcaster events.EventBroadcaster
	events.EventRecorder
	nodeName string
}

func newRecorder(ctx context.Context, client kubernetes.Interface, node string) *recorder {
	b := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	r := &recorder{broadcaster: b, EventRecorder: b.NewRecorder(scheme.Scheme, reporter),
		nodeName: node}
	_ = b.StartRecordingToSinkWithContext(ctx) // fails only if the broadcaster was shut down
	return r
}

func (r *recorder) close() { r.broadcaster.Shutdown() }

// node makes an event about the node.
func (r *recorder) node(kind, reason, action, note string) {
	r.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: r.nodeName,
		UID: types.UID(r.nodeName)}, nil, kind, reason, action, "%.*s", longestNote, note)
}

// service makes a warning about a service.
func (r *recorder) service(n servicemodel.Name, reason, action, note string) {
	r.Eventf(&corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: n.Namespace,
		Name: n.Name, UID: types.UID(n.String())}, nil, corev1.EventTypeWarning, reason, action,
		"%.*s", longestNote, note)
}
