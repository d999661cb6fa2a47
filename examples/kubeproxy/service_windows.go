package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/windows/svc"
)

// serviceName is the name of kube-proxy's service, so that the commands that start and stop it stay
// the same.
const serviceName = "kube-proxy"

// inService runs a function, as a service of Windows if asked to. The service manager can then stop
// it, which ends the function's context.
func inService(ctx context.Context, asService bool, f func(context.Context) error) error {
	if !asService {
		return f(ctx)
	}
	s := &service{ctx: ctx, f: f}
	if err := svc.Run(serviceName, s); err != nil {
		return fmt.Errorf("run as the service %s: %w", serviceName, err)
	}
	return s.err
}

// service is a [svc.Handler].
type service struct {
	ctx context.Context
	f   func(context.Context) error
	err error // of the function, once it has ended
}

// Execute runs the function until it ends or the service manager stops it.
func (s *service) Execute(_ []string, requests <-chan svc.ChangeRequest,
	status chan<- svc.Status) (bool, uint32) {
	const accepts = svc.AcceptStop | svc.AcceptShutdown
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.f(ctx) }()
	status <- svc.Status{State: svc.Running, Accepts: accepts}
	for {
		select {
		case s.err = <-ended:
			status <- svc.Status{State: svc.StopPending}
			if s.err != nil {
				return true, 1
			}
			return false, 0
		case r := <-requests:
			switch r.Cmd {
			case svc.Interrogate:
				status <- r.CurrentStatus
			case svc.Stop, svc.Shutdown:
				status <- svc.Status{State: svc.StopPending}
				cancel()
			}
		}
	}
}
