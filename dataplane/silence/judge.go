package silence

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

// The times of the judge.
const (
	// quick is the age at which a new connection is looked up: a live host answers within a few
	// round trips.
	quick = 200 * time.Millisecond
	// patience is the age at which a connection without an answer is looked up again. Until then a
	// client has sent its SYN three times.
	patience = 3 * time.Second
	// between is the shortest time between two tries of an endpoint, and the first pause.
	between = time.Second
	// questions is the number of connections in a try of an endpoint. One answer is enough: if 3 %
	// of connections get no answer in time, all four fail only once in a million tries.
	questions = 4
	// longest is the longest pause before the first try. A relapse is an ejection within that time
	// of the last return.
	longest = time.Minute
	// trialAfter is the number of pauses after which an endpoint that answers no try is let back
	// in.
	trialAfter = 30
	// forget is the time for which the judge remembers an endpoint without connections.
	forget = 10 * time.Minute
)

// The statistics of the judge.
const (
	// chance is the largest probability at which lost packets alone may still explain a run of
	// unanswered connections.
	chance = 1e-6
	// A first estimate of the share of connections that stay unanswered by chance, and its weight:
	// the number of connections that count as much as the estimate.
	firstShare, firstWeight = 0.01, 10
	// remembered is the number of connections after which an endpoint's history is halved.
	remembered = 1000
	// The maximum number of clients that are remembered for a run, and for a service.
	runClients, serviceClients = 256, 4096
)

// place is an endpoint of a service port.
type place struct {
	service  servicemodel.PortName
	endpoint netip.AddrPort
}

// sample is the outcome of one new connection.
type sample struct {
	place
	client   netip.Addr
	began    time.Time
	answered bool
	// late says that the connection is as old as patience, and had no answer when it was as old as
	// quick.
	late bool
}

// history counts connections: with an answer, and without an answer by chance.
type history struct{ answered, missed float64 }

// add adds connections, and halves the history when it is long.
func (h *history) add(answered, missed int, length float64) {
	h.answered += float64(answered)
	h.missed += float64(missed)
	if h.answered+h.missed > length {
		h.answered /= 2
		h.missed /= 2
	}
}

// share is the share of connections without an answer. As long as the history is short, it is close
// to the estimate.
func (h *history) share(guess float64) float64 {
	return (h.missed + guess*firstWeight) / (h.answered + h.missed + firstWeight)
}

// run is a series of connections to one endpoint without an answer.
type run struct {
	first   time.Time // when the first connection began
	total   int
	clients map[netip.Addr]int
}

// record is what the judge knows about an endpoint.
type record struct {
	history
	seen   time.Time // the last sample
	last   time.Time // when the last answered connection began
	prompt bool      // its last answer came within quick
	run    run
	asked  time.Time // when it was last asked
	silent time.Time // when it last did not answer a question

	out      bool
	ejection Change    // that took it out
	since    time.Time // of the present state; if an earlier process took it out, a pause ago
	pause    time.Duration
	returned time.Time
}

// judge decides which endpoints are silent. It has no clock and does not wait.
type judge struct {
	most    float64 // the largest share of a service's endpoints that may be out
	all     history
	records map[servicemodel.PortName]map[netip.AddrPort]*record
	open    map[place]*record // endpoints that are out, or have a run
	trials  map[place]Change  // endpoints let in on trial that have not answered since
	// failing maps each client whose last connection to a service had no answer to the endpoint of
	// that connection. The zero AddrPort means several endpoints.
	failing map[servicemodel.PortName]map[netip.Addr]netip.AddrPort
	news    []Change
	swept   time.Time
}

func newJudge(most float64) *judge {
	return &judge{most: most, records: map[servicemodel.PortName]map[netip.AddrPort]*record{},
		open:    map[place]*record{},
		trials:  map[place]Change{},
		failing: map[servicemodel.PortName]map[netip.Addr]netip.AddrPort{}}
}

// at returns the record of an endpoint.
func (j *judge) at(p place) *record {
	of := j.records[p.service]
	if of == nil {
		of = map[netip.AddrPort]*record{}
		j.records[p.service] = of
	}

	if of[p.endpoint] == nil {
		of[p.endpoint] = &record{}
	}
	return of[p.endpoint]
}

func (j *judge) hear(s sample, now time.Time) {
	r := j.at(s.place)
	r.seen = now
	if s.answered {
		j.answered(r, s, now)
		return
	}

	j.missed(s)

	// An endpoint that is known to answer in time is judged by connections as old as quick, any
	// other endpoint by connections as old as patience. Connections that began before an answered
	// connection are ignored.
	if s.late == r.prompt || !s.began.After(r.last) || s.began.Before(r.since) || r.out {
		return
	}
	if r.run.total == 0 {
		r.run = run{first: s.began, clients: map[netip.Addr]int{}}
		j.open[s.place] = r
	}

	r.run.total++
	if _, known := r.run.clients[s.client]; known || len(r.run.clients) < runClients {
		r.run.clients[s.client]++
	}
}

func (j *judge) answered(r *record, s sample, now time.Time) {
	delete(j.failing[s.service], s.client)
	if !s.began.Before(r.since) {
		delete(j.trials, s.place)
	}
	if s.began.After(r.last) {
		r.last = s.began
	}
	if s.late {
		// The first SYN of a connection may have been lost. But if no other connection has been
		// answered since, the endpoint is slow.
		if s.began.Before(r.run.first) || r.run.total == 0 {
			return
		}
		r.prompt = false
	} else {
		r.prompt = true
		r.add(1, 0, remembered)
		j.all.add(1, 0, 10*remembered)
	}

	j.alive(r, s.place, now)
}

// alive ends the run of an endpoint that has answered, and lets it back in.
func (j *judge) alive(r *record, p place, now time.Time) {
	if r.out {
		j.enter(r, p, false, now)
	} else if r.run.total > 0 {
		r.add(0, r.run.total, remembered)
		j.all.add(0, r.run.total, 10*remembered)
	}

	r.run = run{}
	delete(j.open, p)
	delete(j.trials, p)
}

// missed remembers the client of a connection without an answer.
func (j *judge) missed(s sample) {
	of := j.failing[s.service]
	if of == nil || len(of) >= serviceClients {
		of = map[netip.Addr]netip.AddrPort{}
		j.failing[s.service] = of
	}

	at, known := of[s.client]
	if known && at != s.endpoint {
		s.endpoint = netip.AddrPort{}
	}
	of[s.client] = s.endpoint
}

// heard records whether an endpoint answered a try.
func (j *judge) heard(p place, answered bool, now time.Time) {
	r := j.records[p.service][p.endpoint]
	switch {
	case r == nil: // forgotten during the question
	case answered:
		j.alive(r, p, now)
	default:
		r.silent = now
	}
}

// next decides what is due. It returns the endpoints to try now. pools returns the desired pools
// that have an endpoint, with the ejected endpoints.
func (j *judge) next(now time.Time, pools func(place) [][]netip.AddrPort) (ask []place) {
	j.sweep(now)
	open := slices.SortedFunc(maps.Keys(j.open), func(a, b place) int {
		return cmp.Or(j.open[a].run.first.Compare(j.open[b].run.first),
			a.endpoint.Compare(b.endpoint))
	})
	for _, p := range open {
		r := j.open[p]
		due := false
		switch age := now.Sub(r.since); {
		case !r.out:
			due = j.suspect(r, p, now, pools)
		case age >= trialAfter*r.pause:
			j.enter(r, p, true, now)
		default:
			due = age >= r.pause && now.Sub(r.asked) >= between
		}

		if due {
			r.asked = now
			ask = append(ask, p)
		}
	}

	return ask
}

// sweep forgets endpoints without connections, once a minute.
func (j *judge) sweep(now time.Time) {
	if now.Sub(j.swept) < time.Minute {
		return
	}
	j.swept = now
	for service, of := range j.records {
		maps.DeleteFunc(of, func(endpoint netip.AddrPort, r *record) bool {
			p := place{service, endpoint}
			old := j.open[p] == nil && now.Sub(r.seen) > forget
			if old {
				delete(j.trials, p)
			}
			return old
		})
		if len(of) == 0 {
			delete(j.records, service)
			delete(j.failing, service)
		}
	}
}

// suspect judges an endpoint with a run. It reports whether to try the endpoint: at the beginning
// of the run, and before it is ejected.
func (j *judge) suspect(r *record, p place, now time.Time,
	pools func(place) [][]netip.AddrPort) (ask bool) {
	enough := j.weight(r, p) >= j.need(r) && j.othersAnswer(r, p)
	fresh := r.silent.After(r.run.first) && now.Sub(r.silent) < between
	if enough && fresh {
		if of := pools(p); len(of) > 0 && j.room(p, of) {
			j.eject(r, p, now)
			return false
		}
	}

	return now.Sub(r.asked) >= between && (enough || r.asked.Before(r.run.first))
}

// weight counts the connections of a run. All connections of the client with the most connections
// count as one, so one client alone never ejects an endpoint. Connections of clients that no
// endpoint answers do not count.
func (j *judge) weight(r *record, p place) int {
	total, most := 0, 0
	for client, n := range r.run.clients {
		if at, failing := j.failing[p.service][client]; !failing || at == p.endpoint {
			total += n
			most = max(most, n)
		}
	}

	return total - most + min(most, 1)
}

// need returns the number of unanswered connections in a row that chance does not explain. It is at
// least two.
func (j *judge) need(r *record) int {
	share := min(r.share(j.all.share(firstShare)), 0.99)
	return max(2, int(math.Ceil(math.Log(chance)/math.Log(share))))
}

// control returns the endpoint to try in addition to p, if p is not ejected: among the endpoints of
// the same service port and family that are neither ejected nor suspect, it is the one that last
// answered a client.
func (j *judge) control(r *record, p place) (endpoint netip.AddrPort, ok bool) {
	var best time.Time
	for other, of := range j.records[p.service] {
		if !r.out && other != p.endpoint && other.Addr().Is4() == p.endpoint.Addr().Is4() &&
			!of.out && of.run.total == 0 && of.last.After(best) {
			endpoint, best, ok = other, of.last, true
		}
	}

	return endpoint, ok
}

// siblings yields the other endpoints of a service port in the same family.
func (j *judge) siblings(p place) iter.Seq[*record] {
	return func(yield func(*record) bool) {
		for endpoint, r := range j.records[p.service] {
			if endpoint != p.endpoint && endpoint.Addr().Is4() == p.endpoint.Addr().Is4() &&
				!yield(r) {
				return
			}
		}
	}
}

// othersAnswer reports whether another endpoint has answered a connection that started after the
// run.
func (j *judge) othersAnswer(r *record, p place) bool {
	for other := range j.siblings(p) {
		if !other.out && other.last.After(r.run.first) {
			return true
		}
	}

	return false
}

// room reports whether an endpoint may be ejected: it is not the last endpoint of any of its pools,
// and not too many endpoints of these pools are ejected.
func (j *judge) room(p place, pools [][]netip.AddrPort) bool {
	for _, pool := range pools {
		out := 0
		for _, endpoint := range pool {
			if endpoint == p.endpoint || j.isOut(place{p.service, endpoint}) {
				out++
			}
		}

		if out == len(pool) || float64(out) > j.most*float64(len(pool)) {
			return false
		}
	}

	return true
}

func (j *judge) eject(r *record, p place, now time.Time) {
	pause := between
	if !r.returned.IsZero() && now.Sub(r.returned) < longest {
		pause = min(2*r.pause, longest)
	}
	r.out, r.since, r.pause = true, now, pause
	r.ejection = Change{Service: p.service, Endpoint: p.endpoint, Out: true, Time: now,
		Since: r.run.first, Connections: r.run.total, Clients: len(r.run.clients)}
	j.news = append(j.news, r.ejection)
	delete(j.trials, p)
}

// remember ejects the endpoints that an earlier process had ejected. They are tried at once.
func (j *judge) remember(earlier []Change, now time.Time) {
	for _, c := range earlier {
		p := place{c.Service, c.Endpoint}
		r := j.at(p)
		*r = record{out: true, ejection: c, since: now.Add(-between), pause: between, seen: now}
		j.open[p] = r
	}
}

// ejected returns the ejected endpoints, in the order of their ejection.
func (j *judge) ejected() (out []Change) {
	for _, r := range j.open {
		if r.out {
			out = append(out, r.ejection)
		}
	}

	return sorted(out)
}

// silent returns the ejected endpoints and those on trial.
func (j *judge) silent() []Change {
	return sorted(slices.AppendSeq(j.ejected(), maps.Values(j.trials)))
}

// sorted sorts changes by their time.
func sorted(out []Change) []Change {
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(a.Time.Compare(b.Time), a.Endpoint.Compare(b.Endpoint),
			a.Service.Compare(b.Service))
	})
	return out
}

// enter lets an endpoint back in.
func (j *judge) enter(r *record, p place, trial bool, now time.Time) {
	in := Change{Service: p.service, Endpoint: p.endpoint, Time: now, Since: r.ejection.Time,
		Connections: r.ejection.Connections, Clients: r.ejection.Clients, Trial: trial}
	j.news = append(j.news, in)
	if trial {
		j.trials[p] = in
	}
	r.out, r.since, r.returned, r.run = false, now, now, run{}
	delete(j.open, p)
}

func (j *judge) isOut(p place) bool {
	r := j.records[p.service][p.endpoint]
	return r != nil && r.out
}

// keep forgets ejected or suspect endpoints that are no longer desired. If too many of the desired
// endpoints are ejected, it lets endpoints back in, starting with the one that was ejected first.
func (j *judge) keep(wanted func(place) bool, pools func(place) [][]netip.AddrPort,
	now time.Time) {
	maps.DeleteFunc(j.trials, func(p place, _ Change) bool { return !wanted(p) })
	out := map[place]*record{}
	for p, r := range j.open {
		switch {
		case r.out && wanted(p):
			out[p] = r
		case !wanted(p):
			delete(j.open, p)
			delete(j.records[p.service], p.endpoint)
		}
	}

	for _, p := range slices.SortedFunc(maps.Keys(out), func(a, b place) int {
		return cmp.Or(out[a].since.Compare(out[b].since), a.endpoint.Compare(b.endpoint))
	}) {
		if !j.room(p, pools(p)) {
			j.enter(out[p], p, true, now)
		}
	}
}
