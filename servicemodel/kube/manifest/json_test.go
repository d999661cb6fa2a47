package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// jsonText has every kind of value.
const jsonText = `{"a": [1, -2.5e3, 0, true, false, null, "x\n\u00e9\ud83d\ude00 é",
 {"b": {}, "c": []}],
 "d": "e" }
`

// tree returns the value that encoding/json would return.
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

// Whatever the text, the parser agrees with encoding/json on its validity, its value, and the line
// of the error.
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
		var want, got []any
		var expected error
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		for expected == nil {
			var v any
			if expected = d.Decode(&v); expected == nil {
				want = append(want, v)
			}
		}

		values, err := parseJSON(document{text, 1})
		for _, v := range values {
			got = append(got, v.tree())
		}
		problem, _ := errors.AsType[*syntaxError](err)
		syntax, invalid := errors.AsType[*json.SyntaxError](expected)
		switch {
		case err != nil && strings.HasSuffix(problem.reason, " is given twice"):
		case expected == io.EOF:
			require.NoError(t, err, "%s", text)
			require.Equal(t, want, got, "%s", text)
		case invalid:
			wrong++
			line := 1 + bytes.Count(text[:syntax.Offset-1], []byte("\n"))
			require.Equal(t, &syntaxError{line, "not JSON: " + syntax.Error()}, problem, "%s", text)
		default:
			require.ErrorContains(t, err, "ends in the middle of a value", "%s", text)
		}
	}

	require.Greater(t, wrong, 5000)
}
