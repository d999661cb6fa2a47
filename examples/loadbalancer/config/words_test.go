package config_test

import (
	"encoding"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

// internals matches words of Go in messages for users.
var internals = regexp.MustCompile(`Parse(Addr|Prefix|Int|Uint|Bool|Duration)|netip\.|encoding/|` +
	`strconv\.|json:|unmarshal|reflect\.|%!|invalid syntax|\bint\b|uint16`)

// Errors of every field name it, and say in the words of the file what is expected, whatever value
// it has.
func TestErrorsOfEveryFieldAreForUsers(t *testing.T) {
	t.Parallel()
	said := 0
	var walk func(typ reflect.Type, head, tail, path string)
	wrong := func(head, tail, path, value string) {
		text := head + value + tail
		_, err := config.Parse("lb.yaml", []byte(text))
		if err == nil {
			return
		}
		for line := range strings.Lines(err.Error()) {
			require.NotRegexp(t, internals, line, text)
			if strings.Contains(line, ": "+path+": ") {
				said++
			}
		}
	}
	walk = func(typ reflect.Type, head, tail, path string) {
		_, isText := reflect.New(typ).Interface().(encoding.TextUnmarshaler)
		switch {
		case isText || typ.Kind() != reflect.Pointer && typ.Kind() != reflect.Struct &&
			typ.Kind() != reflect.Slice:
			for _, value := range []string{"x", "-1", "1.5", "'10.0.0.1:http'", "10.0.0.1/33",
				"0xz", "[]", "[x]", "{}", "{a: b}", "99999999999999999999", "'::1%eth0'", "-5s",
				"web.example.com:80", "''"} {
				wrong(head, tail, path, value)
			}
		case typ.Kind() == reflect.Pointer:
			walk(typ.Elem(), head, tail, path)
		case typ.Kind() == reflect.Slice:
			wrong(head, tail, path, "x")
			walk(typ.Elem(), head+"[", "]"+tail, path+"[0]")
		default:
			wrong(head, tail, path, "x")
			for i := range typ.NumField() {
				if name := config.Name(typ.Field(i)); name != "" {
					walk(typ.Field(i).Type, head+"{"+name+": ", "}"+tail,
						strings.TrimPrefix(path+"."+name, "."))
				}
			}
		}
	}

	walk(reflect.TypeFor[config.File](), "", "", "")
	require.Greater(t, said, 300)
}
