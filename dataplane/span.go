package dataplane

import "context"

// spans calls [Config.Span] for a call of an engine, and for each of its phases.
type spans struct {
	start func(context.Context, string) (context.Context, func(error))

	ctx   context.Context // of the call
	call  func(error)     // ends the call; nil outside of calls
	phase func(error)     // ends the phase
	err   error           // why the call failed
}

// begin begins a call.
func (s *spans) begin(ctx context.Context, doing string) {
	if s.start != nil {
		s.ctx, s.call = s.start(ctx, doing)
	}
}

// enter ends the current phase, if any, and begins another.
func (s *spans) enter(p Phase) {
	if s.call == nil {
		return
	}
	if s.phase != nil {
		s.phase(nil)
	}
	_, s.phase = s.start(s.ctx, p.String())
}

// end ends the call and its last phase. The phase failed if the call did.
func (s *spans) end() {
	if s.call == nil {
		return
	}
	if s.phase != nil {
		s.phase(s.err)
	}
	s.call(s.err)
	s.ctx, s.call, s.phase, s.err = nil, nil, nil, nil
}
