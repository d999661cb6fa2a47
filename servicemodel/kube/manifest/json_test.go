package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// jsonText has every kind of value.
const jsonText = `{"a": [1, -2.5e3, 0, true, false, null, "x\n\u00e9\ud83d\ude00 é",
 {"b": {}, "c": []}],
 "d": "e" }
`

// tree returns what encoding/json would return.
func (v *value) tree() any {
	switch v.kind {
	case boolValue:
		return v.text == "true"
	case numberValue:
		return json.Number(v.text)
	case textValue:
		return v.text
	case listValue:
		l := []any{}
		for _, i := range v.items {
			l = append(l, i.tree())
		}
		return l
	case objectValue:
		m := map[string]any{}
		for _, f := range v.members {
			m[f.name] = f.value.tree()
		}
		return m
	}
	return nil
}

// Whatever the text is, the parser agrees with encoding/json: whether it is JSON, what it says, and
// which line is wrong.
func TestJSONIsReadAsByTheStandardLibrary(t *testing.T) {
	t.Parallel()
	const alphabet = "{}[]\",:\\ \n0123-+.eEtruefalsnu\x01é/"
	rng := rand.New(rand.NewPCG(1, 2))
	wrong := 0
	for range 20_000 {
		text := []byte(jsonText)
		for range rng.IntN(3) {
			i, j := rng.IntN(len(text)), rng.IntN(len(alphabet))
			text = append(append(append([]byte{}, text[:i]...), alphabet[j]),
				text[i+rng.IntN(2):]...)
		}
		if !utf8.Valid(text) {
			continue
		}
		var want any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		expected := d.Decode(&want)
		got, err := parseJSON(document{text, 1})
		if expected == nil && len(bytes.TrimSpace(text[d.InputOffset():])) == 0 {
			var twice *syntaxError
			if errors.As(err, &twice) && bytes.Contains([]byte(twice.reason), []byte("twice")) {
				continue
			}
			require.NoError(t, err, "%s", text)
			require.Equal(t, want, got[0].tree(), "%s", text)
			continue
		}
		var at *json.SyntaxError
		if errors.As(expected, &at) {
			wrong++
			var line *syntaxError
			require.ErrorAs(t, err, &line, "%s", text)
			if at.Offset < int64(len(text)) {
				require.Equal(t, 1+bytes.Count(text[:at.Offset-1], []byte("\n")), line.line,
					"%s: %v: %v", text, err, expected)
				require.Equal(t, "not JSON: "+expected.Error(), err.Error(), "%s", text)
			}
		}
	}
	require.Greater(t, wrong, 5000)
}
