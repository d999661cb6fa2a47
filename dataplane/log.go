package dataplane

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kernlb/kernlb/servicemodel"
)

// logTo returns an observer that writes what matters to a log.
func logTo(log *slog.Logger) Observer {
	return func(ctx context.Context, ev Event) {
		switch ev := ev.(type) {
		case Applied:
			logApplied(ctx, log, ev.Result)
		case Refused:
			log.WarnContext(ctx, "service refused", "backend", ev.Backend, "service",
				ev.Service.String(), "reason", ev.Err)
		case ClaimConflict:
			log.WarnContext(ctx, "address claimed twice", "address", ev.Key.String(), "winner",
				ev.Winner.String(), "loser", ev.Loser.String())
		case Repaired:
			logRepaired(ctx, log, ev.Result)
		case RepairDelayed:
			log.WarnContext(ctx, "somebody undoes repairs again and again: the next one waits")
		case Failed:
			if !errors.Is(ev.Err, context.Canceled) { // the program ends
				log.ErrorContext(ctx, ev.Doing+" failed", "phase", ev.Phase.String(), "error",
					ev.Err)
			}
		case WatchFailed:
			log.ErrorContext(ctx, "watch failed", "error", ev.Err)
		case Switched:
			log.InfoContext(ctx, "switched", "from", ev.From, "to", ev.To, "duration", ev.Duration)
		}
	}
}

// logApplied says what changed. A repair has a line of its own.
func logApplied(ctx context.Context, log *slog.Logger, r *Result) {
	if r.Messages > 0 && (r.Counts != servicemodel.Counts{} || !r.IsRepair()) {
		log.InfoContext(ctx, "applied", "backend", r.Backend, "added", r.Added, "changed",
			r.Changed, "removed", r.Removed, "messages", r.Messages, "bytes", r.Bytes, "duration",
			r.Duration)
	}
}

func logRepaired(ctx context.Context, log *slog.Logger, r *Result) {
	attrs := []any{"backend", r.Backend, "added", r.Repaired.Added, "changed", r.Repaired.Changed,
		"removed", r.Repaired.Removed, "objects", len(r.Drift), "duration", r.Duration}
	if len(r.Drift) > 0 {
		attrs = append(attrs, "first", r.Drift[0])
	}
	log.WarnContext(ctx, "repaired", attrs...)
}
