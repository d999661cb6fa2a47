package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

var update = flag.Bool("update", false, "write the table of fields and the outputs into README.md")

// leaves returns the paths of all fields of a type that hold a value.
func leaves(t reflect.Type, prefix string) (out []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, inline := jsonName(f), f.Anonymous
		typ := f.Type
		if typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		ours := strings.HasPrefix(typ.PkgPath(), "k8s.io/component-base/") ||
			strings.HasPrefix(typ.PkgPath(), "k8s.io/kube-proxy/") || inline
		switch {
		case inline:
			out = append(out, leaves(typ, prefix)...)
		case ours && typ.Kind() == reflect.Struct && name != "flushFrequency":
			out = append(out, leaves(typ, prefix+name+".")...)
		default:
			out = append(out, prefix+name)
		}
	}

	return out
}

func TestEachFieldOfTheTypeIsInTheTableOnce(t *testing.T) {
	t.Parallel()
	var inTable []string
	for _, f := range fields {
		if f.field != "" {
			inTable = append(inTable, f.field)
		}
	}

	want := leaves(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	require.Len(t, want, 62, "the type has more fields than kube-proxy 1.36, or fewer")
	require.ElementsMatch(t, want, inTable)
}

// The list has the flags in "kube-proxy --help" of 1.36.3, and the deprecated flags that the help
// hides.
func TestEachFlagOfKubeProxyIsInTheTable(t *testing.T) {
	t.Parallel()
	record := ok(os.ReadFile("testdata/kube-proxy-flags.txt"))(t)
	inTable := map[string]bool{}
	for _, f := range fields {
		if f.flag != "" {
			inTable[f.flag] = true
		}
	}

	want := strings.Fields(string(record))
	require.ElementsMatch(t, want, slices.Collect(maps.Keys(inTable)))
	o := &options{config: &config{}}
	setDefaults(o.config)
	fs := newFlags(o)
	for _, name := range want {
		if name != "help" {
			require.NotNil(t, fs.Lookup(name), name)
		}
	}

	for _, d := range droppedFlags {
		require.NotContains(t, want, d.name)
		want = append(want, d.name)
	}

	want = append(want, "annotations", "eject-silent") // of this program alone
	fs.VisitAll(func(f *pflag.Flag) { require.Contains(t, want, f.Name) })
}

// modesOf returns a mode in which a field has an effect.
func modesOf(field string) v1alpha1.ProxyMode {
	for _, m := range []v1alpha1.ProxyMode{modeIPVS, modeNFTables} {
		if strings.HasPrefix(field, string(m)+".") {
			return m
		}
	}

	return modeIPTables
}

// other sets a field to another value.
func other(v reflect.Value) {
	switch {
	case v.Kind() == reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(v.Elem())
		v.Set(p)
		other(v.Elem())
	case v.Type() == reflect.TypeFor[metav1.Duration]():
		v.Set(reflect.ValueOf(metav1.Duration{
			Duration: v.Interface().(metav1.Duration).Duration + time.Second}))
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		v.SetString("x")
	case v.Kind() == reflect.Float32:
		v.SetFloat(v.Float() + 1)
	case v.Kind() == reflect.Map:
		v.Set(reflect.ValueOf(map[string]bool{"X": true}))
	case v.Kind() == reflect.Slice:
		v.Set(reflect.ValueOf([]string{"x"}))
	default:
		v.SetInt(v.Int() + 1)
	}
}

// An honoured field changes the behaviour of the program, or is refused. A field without effect
// causes a warning.
func TestEachFieldDoesWhatTheTableSays(t *testing.T) {
	t.Parallel()
	base := func(mode v1alpha1.ProxyMode) *config {
		c := &config{Mode: mode, HostnameOverride: "node1"}
		setDefaults(c)
		setModeDefaults(c)
		return c
	}

	for _, f := range fields {
		if f.field == "" {
			continue
		}
		if strings.HasPrefix(f.field, "logging.") {
			continue // these belong to logsapi: TestLogs
		}
		c := base(modesOf(f.field))
		before, warnings, wrong := newSettings(c)
		require.Empty(t, wrong)
		require.Empty(t, warnings)
		v := fieldAt(c, f.field)
		if other(v); strings.HasPrefix(f.field, "detectLocal.") {
			c.DetectLocalMode = localBridge
			if f.field == "detectLocal.interfaceNamePrefix" {
				c.DetectLocalMode = localPrefix
			}
			other := base(modeIPTables)
			other.DetectLocalMode = c.DetectLocalMode
			_, _, wrong := newSettings(other)
			require.ErrorContains(t, wrong[0], f.field+": is empty")
		}

		after, warnings, wrong := newSettings(c)
		switch {
		case f.effect == noEffect:
			require.Empty(t, wrong)
			require.Equal(t, before, after)
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0], f.field+" has no effect: "+f.text)
		case wrong != nil:
			require.ErrorContains(t, wrong[0], f.field)
		default:
			require.NotEqual(t, before, after, "%s is honoured and does nothing", f.field)
		}
	}
}

// table is the table of the README.
func table() string {
	var b strings.Builder
	b.WriteString("| field | flag | effect |\n|---|---|---|\n")
	for _, f := range fields {
		name, flag, text := f.field, f.flag, string(f.effect)
		if name != "" {
			name = "`" + name + "`"
		}
		if flag != "" {
			flag = "`--" + flag + "`"
		}
		if f.text != "" {
			text += ": " + f.text
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, flag, text)
	}

	return b.String()
}

func TestTheReadmeHasTheTable(t *testing.T) {
	t.Parallel()
	readme := ok(os.ReadFile("README.md"))(t)
	before, rest, found := strings.Cut(string(readme), "| field | flag | effect |\n")
	require.True(t, found)
	_, after, _ := strings.Cut(rest, "\n\n")
	want := before + table() + "\n" + after
	if *update {
		require.NoError(t, os.WriteFile("README.md", []byte(want), 0o644))
		return
	}

	require.True(t, want == string(readme), "go test . -run Readme -update writes the table")
}
