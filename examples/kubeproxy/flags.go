package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/examples/command/suggest"
	"github.com/kernlb/kernlb/examples/command/version"
)

// options are the configuration, and the flags that are not part of it.
type options struct {
	configFile, writeConfigTo, master string
	cleanup, initOnly, version        bool
	compare, ejects                   bool
	annotations                       string
	healthzPort, metricsPort          int32

	config   *config
	doc      *document // nil without a file
	settings *settings
	warnings []string
}

// ofFlag returns the first field that a flag sets, or the entry of a flag without a field. For a
// dropped flag it returns an empty entry.
func ofFlag(flag string) field {
	i := slices.IndexFunc(fields, func(f field) bool { return f.flag == flag })
	if i < 0 {
		return field{}
	}
	return fields[i]
}

// newFlags returns the flags of kube-proxy. The flags of fields set the configuration, which
// already has its defaults.
func newFlags(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("kubeproxy", pflag.ContinueOnError)
	fs.SortFlags = true
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc) // --proxy_mode is --proxy-mode
	fs.StringVar(&o.configFile, "config", "", usage("config"))
	fs.StringVar(&o.writeConfigTo, "write-config-to", "", usage("write-config-to"))
	fs.StringVar(&o.master, "master", "", usage("master"))
	fs.BoolVar(&o.cleanup, "cleanup", false, usage("cleanup"))
	fs.BoolVar(&o.initOnly, "init-only", false, usage("init-only"))
	fs.BoolVar(&o.version, "version", false, "prints the version, and ends")
	fs.StringVar(&o.annotations, "annotations", "", "the prefix of annotations of Services that "+
		"set what Kubernetes has no field for, such as kernlb.io (default: none are read)")
	fs.BoolVar(&o.ejects, "eject-silent", false, "takes out endpoints that do not answer the TCP "+
		"connections of clients, until they answer again; without it, and "+
		"with --annotations, this applies only to services with the annotation "+
		"silent-endpoints: eject")
	fs.Int32Var(&o.healthzPort, "healthz-port", healthzPort, usage("healthz-port"))
	fs.Int32Var(&o.metricsPort, "metrics-port", metricsPort, usage("metrics-port"))
	logsapi.AddFlags(&o.config.Logging, fs)
	for i := range fields {
		f := &fields[i]
		known := fs.Lookup(f.flag)
		switch {
		case f.flag == "":
		case known != nil: // of two fields, or added above
			if v, ok := known.Value.(*flagValue); ok {
				*v = append(*v, setter(fieldAt(o.config, f.field)))
			}
		case f.field != "":
			v := &flagValue{setter(fieldAt(o.config, f.field))}
			flag := fs.VarPF(v, f.flag, "", usage(f.flag))
			if v.Type() == "bool" {
				flag.NoOptDefVal = "true"
			}
		case f.effect == noEffect:
			fs.String(f.flag, "", usage(f.flag))
		}
	}

	for _, d := range droppedFlags {
		fs.String(d.name, "", d.why)
		flag := fs.Lookup(d.name)
		flag.Hidden = true
		if d.toggle {
			flag.NoOptDefVal = "true"
		}
	}

	return fs
}

// usage returns the help of a flag: the name of the first field that it sets, and the text of that
// field. It removes backquotes, because pflag would use a word in backquotes as the name of the
// value.
func usage(flag string) string {
	f := ofFlag(flag)
	return strings.ReplaceAll(strings.Trim(f.field+": "+f.text, ": "), "`", "")
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
			"there. The exit code is 1 if they differ, and 2 if they cannot be compared.\n\n"+
			"flags:\n%s", fs.FlagUsages())
	}

	if err != nil {
		return nil, wrongFlag(fs, err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q: there are flags only", fs.Arg(0))
	}
	if o.version {
		return o, nil
	}
	if modes := o.ends(); len(modes) > 1 {
		return nil, fmt.Errorf("%s: want one of them", strings.Join(modes, " and "))
	}
	for i := range fields {
		if f := &fields[i]; f.field == "" && f.effect == noEffect && fs.Changed(f.flag) {
			o.warnings = append(o.warnings, "--"+f.flag+" has no effect: "+f.text)
		}
	}

	for _, d := range droppedFlags {
		if fs.Changed(d.name) {
			o.warnings = append(o.warnings, "--"+d.name+" has no effect: "+d.why)
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

// ends returns what the command line asks for that ends the program when it is done.
func (o *options) ends() (modes []string) {
	for _, m := range []struct {
		name  string
		given bool
	}{{"compare", o.compare}, {"--cleanup", o.cleanup}, {"--init-only", o.initOnly},
		{"--write-config-to", o.writeConfigTo != ""}} {
		if m.given {
			modes = append(modes, m.name)
		}
	}

	return modes
}

// wrongFlag explains an error of the command line.
func wrongFlag(fs *pflag.FlagSet, err error) error {
	unknown, value := (*pflag.NotExistError)(nil), (*pflag.InvalidValueError)(nil)
	switch {
	case errors.As(err, &unknown):
		var names []string
		fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near, ok := suggest.Nearest(unknown.GetSpecifiedName(), names); ok {
			return fmt.Errorf("%w; did you mean --%s?", err, near)
		}
		return fmt.Errorf("%w: see --help", err)
	case errors.As(err, &value):
		f := value.GetFlag()
		is := "must be a number"
		if path := ofFlag(f.Name).field; path != "" {
			is = expected(path)
		} else if f.Value.Type() == "bool" {
			is = "must be true or false"
		}
		return &valueError{"--" + f.Name, fmt.Errorf("%q: %s", value.GetValue(), is)}
	}

	return err
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

	o.warnings = append(o.warnings, o.doc.dropped...)
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
		isPort := f.Name == "healthz-port" || f.Name == "metrics-port"
		switch name := ofFlag(f.Name).field; {
		case strings.HasPrefix(name, "logging."):
			errs = append(errs, again.Set(f.Name, f.Value.String()))
		case name == "hostnameOverride", name == "" && !isPort:
		default:
			o.warnings = append(o.warnings,
				"--"+f.Name+" has no effect: there is a file, "+o.configFile)
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

// settle derives the settings. Errors name the line of the file, or the flag.
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

	s.master, s.ejects, s.tracker.Annotations = o.master, o.ejects, o.annotations
	o.settings, o.warnings = s, append(o.warnings, warnings...)
	return errors.Join(errs...)
}

// writeConfig writes the configuration with its defaults, and what a start would warn of.
func (o *options) writeConfig(stderr io.Writer) error {
	for _, w := range o.warnings {
		fmt.Fprintln(stderr, "warning:", w)
	}
	text, err := yaml.Marshal(o.config)
	if err == nil {
		err = os.WriteFile(o.writeConfigTo, text, 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	_, err = fmt.Fprintf(stderr, "%s: right for the mode %s\n",
		cmp.Or(o.configFile, "the command line"), o.settings.mode)
	return err
}

// fieldAt returns the field of a configuration by its path in the file, such as
// "iptables.masqueradeBit".
func fieldAt(c *config, path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		all := reflect.VisibleFields(v.Type())
		i := slices.IndexFunc(all, func(f reflect.StructField) bool { return jsonName(f) == name })
		v = v.FieldByIndex(all[i].Index)
	}

	return v
}

// jsonName returns the name of a field in JSON; it is empty if the field is inlined.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// flagValue is a flag that sets one or several fields.
type flagValue []pflag.Value

// Set sets the fields. An empty value leaves the default, as in kube-proxy.
func (l *flagValue) Set(text string) error {
	if text == "" {
		return nil
	}
	for _, v := range *l {
		if err := v.Set(text); err != nil {
			return err
		}
	}

	return nil
}

// String returns the value of the first field.
func (l *flagValue) String() string {
	if l.Type() == "stringSlice" { // which has brackets, so that the help would show none as []
		return strings.Trim((*l)[0].String(), "[]")
	}
	return (*l)[0].String()
}

// Type returns the name of the value in the help.
func (l *flagValue) Type() string { return (*l)[0].Type() }

// setter returns a flag of pflag that sets a field.
func setter(field reflect.Value) pflag.Value {
	if field.Kind() == reflect.Pointer { // its default must not be shared
		own := reflect.New(field.Type().Elem())
		if !field.IsNil() {
			own.Elem().Set(field.Elem())
		}
		field.Set(own)
		field = own.Elem()
	}

	at := field.Addr()
	if field.Kind() == reflect.String {
		at = at.Convert(reflect.TypeFor[*string]())
	}
	const name = "flag"
	var fs pflag.FlagSet
	switch p := at.Interface().(type) {
	case *string:
		fs.StringVar(p, name, *p, "")
	case *bool:
		fs.BoolVar(p, name, *p, "")
	case *int32:
		fs.Int32Var(p, name, *p, "")
	case *float32:
		fs.Float32Var(p, name, *p, "")
	case *metav1.Duration:
		fs.DurationVar(&p.Duration, name, p.Duration, "")
	case *[]string:
		fs.StringSliceVar(p, name, *p, "")
	case *map[string]bool:
		fs.Var(cliflag.NewMapStringBool(p), name, "")
	}

	return fs.Lookup(name).Value
}
