package dataplanetest

import (
	"bytes"
	_ "embed" // scenarios
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kernlb/kernlb/dataplane/dataplanetest/scenario"
	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/servicemodel"
)

//go:embed scenarios.txt
var scenarioText string

// options are the fields that options of scenarios.txt set, as JSON, by the kind of object and the
// name of the option.
type options map[string]string

// set returns x with the options, such as "podCIDRs" or "port=8081". The argument, which may be a
// list with commas, replaces the "$" in the JSON.
func set[T any](o options, kind string, x T, words []string) T {
	for _, w := range words {
		name, arg, _ := strings.Cut(w, "=")
		change := strings.ReplaceAll(o[kind+" "+name], "$", strings.ReplaceAll(arg, ",", `", "`))
		fields := map[string]json.RawMessage{}
		text, err := json.Marshal(x)
		err = errors.Join(err, json.Unmarshal(text, &fields),
			json.Unmarshal([]byte(change), &fields))
		if err == nil {
			text, err = json.Marshal(fields)
		}
		if err == nil {
			x = *new(T)
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.DisallowUnknownFields()
			err = decoder.Decode(&x)
		}

		if err != nil {
			panic(fmt.Sprintf("scenarios.txt: option %s of a %s: %v", w, kind, err))
		}
	}

	return x
}

// targets are the targets of scenarios.txt. Hosts are targets, too, at PortA.
var targets = map[string][]target{
	"cluster": {cluster}, "cluster2": {cluster2}, "unused": {unused}, "external": {external},
	"loadBalancer": {loadBalancer}, "nodePorts": {nodePorts}, "everywhere": everywhere,
	"nodePorts2": {{nodeIP2, nodePort}},
	"nodePortsOutside": {at(netnstest.Net.NodeOutsideIPv4, netnstest.Net.NodeOutsideIPv6,
		nodePort)},
	"nodePortsUnderlay": {at(netnstest.Net.NodeUnderlayIPv4, netnstest.Net.NodeUnderlayIPv6,
		nodePort)},
	"nodePortsLoopback": {at("127.0.0.1", "::1", nodePort)},
	"loopback":          {at("127.0.0.2", "::1", servicePort)},
	"firstAddress":      {{nodeIP, servicePort}},
	"secondAddress":     {{nodeIP2, servicePort}},
	"nowhere":           {at("203.0.113.99", "2001:db8:113::99", servicePort)},
}

// outcomes are the outcomes of scenarios.txt, before the hosts that may answer.
var outcomes = map[string]func(hosts ...string) scenario.Want{
	"reaches": reaches, "masqueraded": masqueraded,
	"reaches-or-masqueraded": func(hosts ...string) scenario.Want {
		return to(scenario.AnySource, hosts...)
	},
	"rejected": func(...string) scenario.Want { return rejected },
	"reset": func(...string) scenario.Want {
		return scenario.Want{Outcome: servicemodel.Rejected, Reset: true}
	},
	"dropped":   func(...string) scenario.Want { return dropped },
	"untouched": func(...string) scenario.Want { return untouched },
}

// Scenarios returns all scenarios of the suite: scenarios.txt and the matrix.
func Scenarios() (l []scenario.Scenario) {
	defined, text := options{}, strings.Replace(scenarioText, "\nmatrix\n", "\n"+matrix(), 1)
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		if option, found := strings.CutPrefix(line, "option "); found {
			name, fields, _ := strings.Cut(option, " {")
			defined[name] = "{" + fields
			continue
		}

		words, after := cutWords(line)
		if len(words) == 0 || line[0] == '#' {
			continue
		}
		if line[0] == '[' {
			row, name, _ := strings.Cut(strings.TrimSpace(line[1:]), "] ")
			l = append(l, scenario.Scenario{Name: name, Line: row})
			continue
		}

		s := &l[len(l)-1]
		step := len(s.Steps) - 1
		switch isCheck := strings.HasPrefix(line, "    "); {
		case isCheck:
			want := outcomes[after[0]](after[1:]...)
			for from := range strings.SplitSeq(words[0], ",") {
				for _, t := range words[1:] {
					s.Steps[step].Checks = append(s.Steps[step].Checks,
						writtenChecks(from, t, want)...)
				}
			}
		case words[0] == "bridge":
			s.Options.Bridge = words[1]
		case words[0] == "prefix":
			s.Options.PodInterfacePrefix = words[1]
		case words[0] == "node":
			n := set(defined, "node", thisNode(), words[1:])
			s.Steps = append(s.Steps, scenario.Step{State: servicemodel.State{}.WithNode(n)})
		case words[0] == "service":
			svc := set(defined, "service", web(), words[1:])
			s.Steps[step].State = and(s.Steps[step].State, svc, writtenEndpoints(defined, after))
		default:
			panic("scenarios.txt: " + line)
		}
	}

	return l
}

// cutWords returns the words of a line before ": ", or before a colon at its end, and the words
// after it.
func cutWords(line string) (before, after []string) {
	a, b, _ := strings.Cut(strings.TrimSpace(line)+" ", ": ")
	return strings.Fields(a), strings.Fields(b)
}

// writtenEndpoints are endpoints such as "pod2+terminating" or "pod2/ipv4".
func writtenEndpoints(defined options, words []string) (l []servicemodel.Endpoint) {
	for _, w := range words {
		part := strings.Split(w, "+")
		host, family, _ := strings.Cut(part[0], "/")
		for _, e := range eps(host) {
			if family == "" || strings.EqualFold(family, servicemodel.FamilyOf(e.Addr).String()) {
				l = append(l, set(defined, "endpoint", e, part[1:]))
			}
		}
	}

	return l
}

// writtenChecks are the checks from a host to a target such as "cluster:81/ipv4/tcp".
func writtenChecks(from, to string, want scenario.Want) (checks []scenario.Check) {
	part := strings.Split(to, "/")
	name, port, _ := strings.Cut(part[0], ":")
	l := targets[name]
	if l == nil {
		l = []target{{hostAddrs(name), scenario.PortA}}
	}
	for _, t := range l {
		if port != "" {
			t = t.on(number(port))
		}
		checks = append(checks, ask(from, t, want)...)
	}

	return slices.DeleteFunc(checks, func(c scenario.Check) bool {
		is := []string{c.Proto.String(), servicemodel.FamilyOf(c.To.Addr()).String()}
		return slices.ContainsFunc(part[1:], func(p string) bool {
			return !slices.ContainsFunc(is, func(s string) bool { return strings.EqualFold(s, p) })
		})
	})
}

func number(s string) uint16 {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		panic(fmt.Sprintf("scenarios.txt: %v", err))
	}
	return uint16(n)
}
