package config

import (
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"
	"time"

	"github.com/kernlb/kernlb/dataplane/checks"
	"github.com/kernlb/kernlb/servicemodel"
)

// Check is a [checks.Check] in a file. The fields mean the same.
type Check struct {
	Type    string `yaml:"type"`
	Address Addr   `yaml:"address,omitempty"`
	Port    uint16 `yaml:"port,omitempty"`
	Source  Addr   `yaml:"source,omitempty"`

	Interval time.Duration `yaml:"interval,omitempty"`
	Timeout  time.Duration `yaml:"timeout,omitempty"`
	Retry    time.Duration `yaml:"retry,omitempty"`
	Jitter   time.Duration `yaml:"jitter,omitempty"`
	Rise     int           `yaml:"rise,omitempty"`
	Fall     int           `yaml:"fall,omitempty"`

	Method  string `yaml:"method,omitempty"`
	Path    string `yaml:"path,omitempty"`
	Host    string `yaml:"host,omitempty"`
	Status  string `yaml:"status,omitempty"`
	Digest  string `yaml:"digest,omitempty"`
	Service string `yaml:"service,omitempty"`

	TLS        bool   `yaml:"tls,omitempty"`
	ServerName string `yaml:"serverName,omitempty"`
	Verify     bool   `yaml:"verify,omitempty"`
	CA         string `yaml:"ca,omitempty"`

	Payload Bytes `yaml:"payload,omitempty"`
	Reply   bool  `yaml:"reply,omitempty"`
	Answer  Bytes `yaml:"answer,omitempty"`
}

// Check returns the check.
func (c *Check) Check() checks.Check {
	return checks.Check{Type: checks.Type(c.Type), Address: c.Address.Addr, Port: c.Port,
		Source: c.Source.Addr, Interval: c.Interval, Timeout: c.Timeout, Retry: c.Retry,
		Jitter: c.Jitter, Rise: c.Rise, Fall: c.Fall, Method: c.Method, Path: c.Path, Host: c.Host,
		Status: c.Status, Digest: c.Digest, Service: c.Service, TLS: c.TLS,
		ServerName: c.ServerName, Verify: c.Verify, CA: c.CA, Payload: string(c.Payload),
		Reply: c.Reply, Answer: string(c.Answer)}
}

// Validate returns the wrong fields. They have the same names in the file.
func (c *Check) Validate() (faults []*FieldError) {
	for _, err := range joined(c.Check().Validate()) {
		var field *servicemodel.FieldError
		if errors.As(err, &field) {
			reason := field.Reason
			if field.Value != "" {
				reason = field.Value + ": " + reason
			}
			faults = append(faults, &FieldError{Path: field.Field, Err: errors.New(reason)})
		}
	}

	return faults
}

// Addr is an address that YAML leaves out if it is invalid.
type Addr struct{ netip.Addr }

// IsZero reports whether the address is left out.
func (a Addr) IsZero() bool { return !a.IsValid() }

// Bytes are text in a file, or, after 0x, hexadecimal digits.
type Bytes string

// hexPrefix precedes hexadecimal digits.
const hexPrefix = "0x"

// UnmarshalText reads text or digits.
func (b *Bytes) UnmarshalText(text []byte) error {
	digits, isHex := strings.CutPrefix(string(text), hexPrefix)
	if !isHex {
		*b = Bytes(text)
		return nil
	}

	raw, err := hex.DecodeString(digits)
	*b = Bytes(raw)
	return err
}

// MarshalText returns digits, which any bytes can be.
func (b Bytes) MarshalText() ([]byte, error) {
	return []byte(hexPrefix + hex.EncodeToString([]byte(b))), nil
}
