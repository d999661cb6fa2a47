package leastconn

import (
	"slices"
	"time"

	"github.com/kernlb/kernlb/servicemodel"
)

const (
	// mostGain is the greatest gain. The gain is the percentage by which an endpoint's share
	// shrinks for each percent of open connections above the mean.
	mostGain = 10
	// leastPart and mostPart limit an endpoint's share, as multiples of its fair share. So a new
	// endpoint, which has no connections, is not flooded.
	leastPart, mostPart = .1, 2
	// mostMoved is the largest fraction of a pool's units that one update moves.
	mostMoved = 1. / 8
)

// gainOf returns the gain for connections with the mean lifetime life, if updates are period apart.
// Connections that start after an update affect the shares only at the next update. So a greater
// gain would cause oscillation.
func gainOf(life, period time.Duration) float64 {
	return min(mostGain, life.Seconds()/(2*period.Seconds()))
}

// next returns the units that the endpoints should have, and keeps the rounding errors in p.debt.
func (p *pool) next(period time.Duration) []int {
	size := servicemodel.FedUnits(len(p.weights))
	if p.judge(period); p.random || size == 0 {
		out := make([]int, len(p.weights))
		for i, weight := range p.weights {
			out[i] = int(weight)
		}
		return out
	}

	out, total := slices.Clone(p.units), 0
	for _, n := range out {
		total += n
	}
	if total != size {
		out = servicemodel.Apportion(p.weights, size)
	}
	if len(p.debt) != len(out) {
		p.debt = make([]float64, len(out))
	}

	want, lacks := p.wanted(size, gainOf(p.life(), period)), make([]float64, len(out))
	for i, n := range out {
		lacks[i] = want[i] - float64(n) + p.debt[i]
	}

	for range max(int(float64(size)*mostMoved), 1) {
		to, from := 0, -1
		for i, l := range lacks {
			if l > lacks[to] {
				to = i
			}
			if out[i] > 1 && (from < 0 || l < lacks[from]) {
				from = i
			}
		}

		if from < 0 || lacks[to]-lacks[from] <= 1 {
			break
		}
		out[to]++
		out[from]--
		lacks[to]--
		lacks[from]++
	}

	for i := range want {
		p.debt[i] = min(max(p.debt[i]+want[i]-float64(out[i]), -1), 1)
	}
	return out
}

// judge decides whether to choose endpoints at random, by weight: if most connections begin and end
// between two counts, the counts mean nothing. Units would be worse than chance, because they are
// rounded.
func (p *pool) judge(period time.Duration) {
	switch life := p.life(); {
	case life < period*2/3:
		p.random = true
	case life >= period:
		p.random = false
	}
}

// wanted returns the units that the endpoints should have, before rounding.
func (p *pool) wanted(size int, gain float64) []float64 {
	conns, weights := 0., 0.
	for i, weight := range p.weights {
		conns, weights = conns+p.open[i], weights+weight
	}

	want, sum := make([]float64, len(p.weights)), 0.
	for i, weight := range p.weights {
		part := 1.
		if conns > 0 {
			excess := p.open[i]/conns*weights/weight - 1
			part = min(max(1-gain*excess, leastPart), mostPart)
		}
		want[i] = weight * part
		sum += want[i]
	}

	for i := range want {
		want[i] = max(want[i]/sum*float64(size), 1)
	}
	return want
}
