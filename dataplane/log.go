package dataplane

import (
	"context"
	"errors"
	"log/slog"

	"github.com/kernlb/kernlb/internal/logkey"
	"github.com/kernlb/kernlb/servicemodel"
)

// logTo returns an observer that logs the important events.
func logTo(log *slog.Logger) Observer {
	return func(ctx context.Context, ev Event) {
		switch ev := ev.(type) {
		case Applied:
			logApplied(ctx, log, ev.Result)
		case Refused:
			what := "service refused"
			if len(ev.Endpoints) > 0 {
				what = "endpoints left out"
			} else if ev.Kept {
				what = "service refused, and left as it was"
			}
			log.WarnContext(ctx, what, logkey.Backend, ev.Backend, logkey.Service,
				ev.Service.String(), logkey.Reason, ev.Err)
		case PartRefused:
			log.WarnContext(ctx, "part refused", logkey.Backend, ev.Backend, logkey.Owner, ev.Owner,
				logkey.Reason, ev.Err)
		case ClaimConflict:
			log.WarnContext(ctx, "address claimed twice", logkey.Address, ev.Key.String(),
				logkey.Winner, ev.Winner.String(), logkey.Loser, ev.Loser.String())
		case Repaired:
			logRepaired(ctx, log, ev.Result)
		case RepairDelayed:
			log.WarnContext(ctx, "somebody undoes repairs again and again: the next one waits")
		case RepairUndone:
			log.WarnContext(ctx, "repair undone", logkey.Backend, ev.Backend, logkey.Program,
				ev.Name, logkey.Thread, ev.Thread)
		case Failed:
			if errors.Is(ev.Err, ErrNotApproved) {
				log.WarnContext(ctx, ev.Doing+" not approved", logkey.Backend, ev.Backend,
					of(nil, ev.Revision), logkey.Reason, ev.Err)
			} else if !errors.Is(ev.Err, context.Canceled) { // the program ends
				log.ErrorContext(ctx, ev.Doing+" failed", logkey.Backend, ev.Backend,
					of(ev.Owners, ev.Revision), logkey.Phase, ev.Phase.String(), logkey.Error,
					ev.Err)
			}
		case WatchFailed:
			log.ErrorContext(ctx, "watch failed", logkey.Error, ev.Err)
		case Switched:
			log.InfoContext(ctx, "switched", logkey.From, ev.From, logkey.To, ev.To,
				logkey.Messages, ev.Messages, logkey.Bytes, ev.Bytes, logkey.Duration, ev.Duration)
		case CleanedUp:
			log.InfoContext(ctx, "cleaned up", logkey.Backend, ev.Backend, logkey.Messages,
				ev.Messages, logkey.Bytes, ev.Bytes, logkey.Duration, ev.Duration)
		case WriteConflict:
			log.DebugContext(ctx, "another writer came between", logkey.Doing, ev.Doing,
				logkey.Try, ev.Try, logkey.Error, ev.Err)
		case Settled:
			log.DebugContext(ctx, "settled", logkey.Next, ev.Next, logkey.Duration, ev.Duration)
		}
	}
}

// logApplied logs the changes, at debug level if there are none but steps of slow starts. A repair
// has a line of its own.
func logApplied(ctx context.Context, log *slog.Logger, r *Result) {
	level := slog.LevelDebug
	if r.Messages > 0 && !r.Step && (r.Counts != servicemodel.Counts{} || !r.IsRepair()) {
		level = slog.LevelInfo
	}
	log.Log(ctx, level, "applied", logkey.Backend, r.Backend, of(r.Owners, r.Revision),
		logkey.Added, r.Added, logkey.Changed, r.Changed, logkey.Removed, r.Removed,
		logkey.Messages, r.Messages, logkey.Bytes, r.Bytes, logkey.Duration, r.Duration)
}

// of returns the subject of an event: the owners of parts, or a revision of the whole.
func of(owners []string, r Revision) slog.Attr {
	if len(owners) > 0 {
		return slog.Any(logkey.Owners, owners)
	}
	return slog.Uint64(logkey.Revision, uint64(r))
}

func logRepaired(ctx context.Context, log *slog.Logger, r *Result) {
	attrs := []any{logkey.Backend, r.Backend, logkey.Added, r.Repaired.Added, logkey.Changed,
		r.Repaired.Changed, logkey.Removed, r.Repaired.Removed, logkey.Objects, len(r.Drift),
		logkey.Duration, r.Duration}
	if len(r.Drift) > 0 {
		attrs = append(attrs, logkey.First, r.Drift[0])
	}
	log.WarnContext(ctx, "repaired", attrs...)
}

// logPlan logs, at debug level, what a commit is about to send.
func (e *Engine) logPlan(ctx context.Context, c *servicemodel.ChangeSet) {
	if e.cfg.Logger == nil || !e.cfg.Logger.Enabled(ctx, slog.LevelDebug) {
		return
	}
	name := e.backend.Name()
	plan, err := e.backend.Plan(c)
	if err != nil {
		e.cfg.Logger.DebugContext(ctx, "no plan", logkey.Backend, name, logkey.Error, err)
		return
	}
	e.cfg.Logger.DebugContext(ctx, "committing", logkey.Backend, name, logkey.Plan, plan.String())
}
