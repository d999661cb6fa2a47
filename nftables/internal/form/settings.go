package form

import (
	"errors"

	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rendering"
	"github.com/kernlb/kernlb/servicemodel"
)

// LayoutNumber is the number of the layout, and part of the settings: see package rendering. A
// change increments it if the same sets and chains get a different meaning.
const LayoutNumber = 4

const settingsHaveFirst = 1 // the number of the first setting

// Settings writes the elements of the settings, and the records of earlier values of sysctls.
func (w *Writer) Settings(r servicemodel.Rules, records map[string]string, to Sink) {
	lines := rendering.Settings(LayoutNumber, r)
	for name := range sysctls.Loopback(&r) {
		lines = append(lines, sysctls.Record(name, records[name]))
	}
	for i, line := range lines {
		w.ud = nft.AppendComment(w.ud[:0], line)
		to(SetSettings, nft.Elem{Key: nft.Native32(uint32(i + settingsHaveFirst)),
			UserData: w.ud})
	}
}

// ParseSettings is the inverse of Settings. It returns the records of any layout, even if the other
// settings are faulty.
func ParseSettings(m map[string]*nft.Elem) (rules servicemodel.Rules, records map[string]string,
	err error) {
	lines := make([]string, 0, len(m))
	for _, e := range m {
		lines = append(lines, nft.CommentOf(e.UserData))
	}
	records, lines = sysctls.ParseRecords(lines), lines[:0]
	for i := range len(m) {
		e, ok := m[string(nft.Native32(uint32(i+settingsHaveFirst)))]
		if !ok {
			return servicemodel.Rules{}, records, errors.New("the settings have gaps")
		}
		line := nft.CommentOf(e.UserData)
		if _, _, ok := sysctls.ParseRecord(line); !ok {
			lines = append(lines, line)
		}
	}

	rules, err = rendering.ParseSettings(LayoutNumber, lines)
	return rules, records, err
}
