package form

import (
	"errors"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// LayoutNumber is the number of the layout, and part of the settings: see package settings. A
// change increments it if the same sets and chains then mean something else.
const LayoutNumber = 4

const settingsHaveFirst = 1 // the number of the first setting

// The sysctl route_localnet is on while a service or node port answers at loopback addresses, and
// only while the guard exists. The transaction that brings the guard writes the earlier value of
// the sysctl as a setting. The sysctl returns to that value before the guard is removed, unless
// another program has a guard and so relies on the sysctl.

// Localnet is the backend's knowledge of the sysctl route_localnet.
type Localnet struct {
	// Before is the value of the sysctl before it was needed.
	Before bool
	// Off says that the sysctl was found off although it is needed.
	Off bool
	// Left says that the sysctl was needed for a table that must be made anew, or is gone.
	Left bool
}

// Settings writes the elements of the settings. localnet is the value of the sysctl
// route_localnet before it was needed.
func (w *Writer) Settings(r servicemodel.Rules, localnet bool, to Sink) {
	lines := rendering.Settings(LayoutNumber, r)
	if rendering.WantsRouteLocalnet(&r) {
		lines = append(lines, rendering.RouteLocalnetLine(localnet))
	}
	for i, line := range lines {
		w.ud = nft.AppendComment(w.ud[:0], line)
		to(SetSettings, nft.Elem{Key: nft.Native32(uint32(i + settingsHaveFirst)),
			UserData: w.ud})
	}
}

// ParseSettings is the inverse of writeSettings. It also says what any layout notes about the
// sysctl route_localnet.
func ParseSettings(m map[string]*nft.Elem) (rules servicemodel.Rules, local Localnet, err error) {
	for _, e := range m {
		before, ok := rendering.ParseRouteLocalnetLine(nft.CommentOf(e.UserData))
		local.Before, local.Left = local.Before || before, local.Left || ok
	}
	lines := make([]string, 0, len(m))
	for i := range len(m) {
		e, ok := m[string(nft.Native32(uint32(i+settingsHaveFirst)))]
		if !ok {
			return servicemodel.Rules{}, local, errors.New("the settings have gaps")
		}
		line := nft.CommentOf(e.UserData)
		if _, ok := rendering.ParseRouteLocalnetLine(line); !ok {
			lines = append(lines, line)
		}
	}
	rules, err = rendering.ParseSettings(LayoutNumber, lines)
	return rules, local, err
}
