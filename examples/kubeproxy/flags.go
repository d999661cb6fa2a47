package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/examples/internal/version"
)

// options are the configuration, and the flags that are not part of it.
type options struct {
	configFile, writeConfigTo, master string
	cleanup, initOnly, version        bool
	compare                           bool
	healthzPort, metricsPort          int32

	config   *config
	doc      *document // nil without a file
	settings *settings
	warnings []string
}

// besideFile reports whether a flag has an effect beside a file.
func besideFile(flag string) bool {
	switch flag {
	case "healthz-port", "metrics-port":
		return false
	case "hostname-override":
		return true
	}
	return isLogging(flag) || slices.ContainsFunc(fields, func(f field) bool {
		return f.flag == flag && f.field == ""
	})
}

// isLogging reports whether a flag belongs to logging.
func isLogging(flag string) bool {
	return slices.ContainsFunc(fields, func(f field) bool {
		return f.flag == flag && strings.HasPrefix(f.field, "logging.")
	})
}

// newFlags returns the flags of kube-proxy. The flags of fields set the configuration, which
// already has its defaults.
func newFlags(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("kubeproxy", pflag.ContinueOnError)
	fs.SortFlags = true
	fs.StringVar(&o.configFile, "config", "", usage("config"))
	fs.StringVar(&o.writeConfigTo, "write-config-to", "", usage("write-config-to"))
	fs.StringVar(&o.master, "master", "", usage("master"))
	fs.BoolVar(&o.cleanup, "cleanup", false, usage("cleanup"))
	fs.BoolVar(&o.initOnly, "init-only", false, usage("init-only"))
	fs.BoolVar(&o.version, "version", false, "prints the version, and ends")
	fs.Int32Var(&o.healthzPort, "healthz-port", healthzPort, usage("healthz-port"))
	fs.Int32Var(&o.metricsPort, "metrics-port", metricsPort, usage("metrics-port"))
	logsapi.AddFlags(&o.config.Logging, fs)
	values := map[string]*flagValue{}
	for i := range fields {
		f := &fields[i]
		if f.field == "" && f.effect == noEffect {
			fs.String(f.flag, "", usage(f.flag))
		}
		if f.flag == "" || f.field == "" {
			continue
		}
		if v := values[f.flag]; v != nil {
			v.fields = append(v.fields, fieldAt(o.config, f.field))
		} else if fs.Lookup(f.flag) == nil {
			v := &flagValue{fields: []reflect.Value{fieldAt(o.config, f.field)}}
			values[f.flag] = v
			p := fs.VarPF(v, f.flag, "", usage(f.flag))
			if v.Type() == "bool" {
				p.NoOptDefVal = "true"
			}
		}
	}
	return fs
}

// usage returns the help of a flag: its fields, and the text of the first. It removes backquotes,
// because pflag would use a word in backquotes as the name of the value.
func usage(flag string) string {
	for i := range fields {
		if f := &fields[i]; f.flag == flag {
			return strings.ReplaceAll(strings.Trim(f.field+": "+f.text, ": "), "`", "")
		}
	}
	return ""
}

// parseOptions reads the command line and the file that it names.
func parseOptions(args []string) (*options, error) {
	o := &options{config: &config{}, version: version.Asked(args)}
	if o.version {
		return o, nil
	}
	if len(args) > 0 && args[0] == "compare" {
		o.compare, args = true, args[1:]
	}
	setDefaults(o.config)
	fs := newFlags(o)
	fs.SetOutput(io.Discard) // the returned error is enough
	err := fs.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Printf("usage: kernlb-kubeproxy --config FILE\n"+
			"       kernlb-kubeproxy compare --config FILE\n       kernlb-kubeproxy version\n\n"+
			"compare prints what kube-proxy has in the kernel beside what this program would put\n"+
			"there. The exit code is 1 if they differ.\n\nflags:\n%s", fs.FlagUsages())
	}
	if err != nil {
		return nil, err
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: there are flags only", fs.Arg(0))
	}
	if o.version {
		return o, nil
	}
	for i := range fields {
		if f := &fields[i]; f.field == "" && f.effect == noEffect && fs.Changed(f.flag) {
			o.warnings = append(o.warnings, "--"+f.flag+" has no effect: "+f.text)
		}
	}
	if o.configFile != "" {
		if err := o.load(fs); err != nil {
			return nil, err
		}
	} else if err := o.ports(); err != nil {
		return nil, err
	}
	setModeDefaults(o.config)
	return o, o.settle()
}

// load reads the file. With a file, a flag has an effect only if it has one in kube-proxy, too.
func (o *options) load(fs *pflag.FlagSet) error {
	var err error
	if o.doc, err = readDocument(o.configFile); err != nil {
		return err
	}
	c, err := o.doc.decode()
	if err != nil {
		return err
	}
	if c.APIVersion == "" || c.Kind == "" {
		return &fileError{o.configFile, 0,
			fmt.Errorf("want apiVersion: %s and kind: %s", apiVersion, kind)}
	}
	version, kind := c.APIVersion, c.Kind
	setDefaults(c)
	c.APIVersion, c.Kind = version, kind
	given := o.config
	o.config = c
	if given.HostnameOverride != "" {
		c.HostnameOverride = given.HostnameOverride
	}
	again := newFlags(&options{config: c})
	var errs []error
	fs.Visit(func(f *pflag.Flag) {
		if !besideFile(f.Name) {
			o.warnings = append(o.warnings,
				"--"+f.Name+" has no effect: there is a file, "+o.configFile)
		} else if isLogging(f.Name) {
			errs = append(errs, again.Set(f.Name, f.Value.String()))
		}
	})
	return errors.Join(errs...)
}

// ports handles the two deprecated flags: 0 means no server, and an address without a port gets
// this one.
func (o *options) ports() error {
	for _, p := range []struct {
		flag    string
		port    int32
		address *string
	}{
		{"healthz-port", o.healthzPort, &o.config.HealthzBindAddress},
		{"metrics-port", o.metricsPort, &o.config.MetricsBindAddress},
	} {
		if p.port < 0 || p.port > 65535 {
			return fmt.Errorf("--%s: %d: must be 0 to 65535", p.flag, p.port)
		}
		if p.port == 0 {
			*p.address = ""
		} else {
			*p.address = withPort(*p.address, uint16(p.port))
		}
	}
	return nil
}

// settle makes the settings. Errors name the line of the file, or the flag.
func (o *options) settle() error {
	s, warnings, wrong := newSettings(o.config)
	var errs []error
	for _, e := range wrong {
		if o.doc != nil {
			errs = append(errs, &fileError{o.doc.name, o.doc.line(e.field), e})
			continue
		}
		for _, f := range fields {
			if f.field == e.field && f.flag != "" {
				e = &valueError{"--" + f.flag, e.err}
				break
			}
		}
		errs = append(errs, e)
	}
	s.client.master = o.master
	o.settings, o.warnings = s, append(o.warnings, warnings...)
	return errors.Join(errs...)
}

// writeConfig writes the configuration with its defaults.
func (o *options) writeConfig() error {
	text, err := yaml.Marshal(o.config)
	if err == nil {
		err = os.WriteFile(o.writeConfigTo, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

// fieldAt returns the field of a configuration by its path in the file, such as
// "iptables.masqueradeBit". It returns the zero Value if there is no such field.
func fieldAt(c *config, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v = fieldNamed(v, name); !v.IsValid() {
			break
		}
	}
	return v
}

// fieldNamed returns the field of a struct, or of a struct inlined in it, by its name in JSON.
func fieldNamed(v reflect.Value, name string) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	for i := range v.NumField() {
		tag, inline := jsonName(v.Type().Field(i))
		if inline {
			if f := fieldNamed(v.Field(i), name); f.IsValid() {
				return f
			}
		} else if tag == name {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// jsonName returns the name of a field in JSON, and whether the field is inlined.
func jsonName(f reflect.StructField) (name string, inline bool) {
	name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name, name == "" && strings.Contains(options, "inline")
}

// flagValue is a flag (pflag.Value) that sets fields of a configuration.
type flagValue struct {
	fields []reflect.Value
	given  bool // the flag occurred before: lists then grow
}

var duration = reflect.TypeFor[metav1.Duration]()

// target returns the value of a field, without the pointer that some have.
func (f *flagValue) target(i int) reflect.Value {
	v := f.fields[i]
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem())) // defaults must not be shared
		v = v.Elem()
	}
	return v
}

// Set parses the value of the flag. An empty value leaves the default, as in kube-proxy.
func (f *flagValue) Set(text string) error {
	if text == "" {
		return nil
	}
	for i := range f.fields {
		v := f.target(i)
		if v.Kind() == reflect.Slice && !f.given {
			v.SetZero()
		}
		if err := setText(v, text); err != nil {
			return err
		}
	}
	f.given = true
	return nil
}

// setText parses a text into a field.
func setText(v reflect.Value, text string) error {
	var err error
	switch {
	case v.Type() == duration:
		var d time.Duration
		d, err = time.ParseDuration(text)
		v.Set(reflect.ValueOf(metav1.Duration{Duration: d}))
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		v.SetBool(b)
	case v.Kind() == reflect.Int32:
		var n int64
		n, err = strconv.ParseInt(text, 0, 32)
		v.SetInt(n)
	case v.Kind() == reflect.Float32:
		var n float64
		n, err = strconv.ParseFloat(text, 32)
		v.SetFloat(n)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.AppendSlice(v, reflect.ValueOf(strings.Split(text, ","))))
	case v.Kind() == reflect.Map:
		err = setGates(v.Interface().(map[string]bool), text)
	default:
		err = fmt.Errorf("no flag sets a %s", v.Type())
	}
	return err
}

// setGates adds feature gates from NAME=BOOL,…
func setGates(gates map[string]bool, text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%q: want NAME=true or NAME=false", pair)
		}
		gates[strings.TrimSpace(name)] = on
	}
	return nil
}

// String returns the value of the first field.
func (f *flagValue) String() string {
	if len(f.fields) == 0 || !f.fields[0].IsValid() {
		return ""
	}
	v := reflect.Indirect(f.fields[0])
	switch {
	case !v.IsValid() || v.Kind() == reflect.Slice && v.Len() == 0:
		return ""
	case v.Type() == duration:
		return v.Interface().(metav1.Duration).Duration.String()
	case v.Kind() == reflect.Slice:
		return strings.Join(v.Interface().([]string), ",")
	}
	return fmt.Sprint(v.Interface())
}

// Type returns the name of the value in the help.
func (f *flagValue) Type() string {
	t := f.fields[0].Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == duration:
		return "duration"
	case t.Kind() == reflect.Slice:
		return "strings"
	case t.Kind() == reflect.Map:
		return "mapStringBool"
	}
	return t.Kind().String()
}
