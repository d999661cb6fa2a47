package backends

import (
	"context"
	"net/netip"

	"github.com/kernlb/kernlb/servicemodel"
)

// Notice is the outcome of later work: a [Cleaned] or a [Drained]. Observers of an engine get it as
// an event.
type Notice interface{ notice() }

// Cleaned reports stale flows of a service port that were found and deleted after a change. The
// number includes flows that ended before the deletion.
type Cleaned struct {
	Service servicemodel.PortName // zero if the frontend no longer has a service
	Flows   int
}

// Drained is an endpoint that gets no new connections from a frontend and has no connections left.
// Conntrack does not report the end of connections, so backends other than IPVS emit a Drained only
// at the deadline.
type Drained struct {
	// Service is zero if the frontend no longer exists. The engine fills in Service if it knows the
	// frontend.
	Service  servicemodel.PortName
	Frontend servicemodel.FrontendKey
	Endpoint netip.AddrPort
	// Deadline says that the drain time is over, see [servicemodel.ConnectionPolicy]. Connections
	// that were still open have been reset.
	Deadline bool
}

func (Cleaned) notice() {}
func (Drained) notice() {}

// noticeKey is the key of a context's function for notices.
type noticeKey struct{}

// WithNotices returns a context that makes [Notify] call f.
func WithNotices(ctx context.Context, f func(context.Context, Notice)) context.Context {
	return context.WithValue(ctx, noticeKey{}, f)
}

// Notify passes a notice to the observers of an engine. A [Settler] calls it in Settle, with the
// context of that call. With any other context it does nothing.
func Notify(ctx context.Context, n Notice) {
	if f, ok := ctx.Value(noticeKey{}).(func(context.Context, Notice)); ok {
		f(ctx, n)
	}
}
