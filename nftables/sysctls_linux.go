package nftables

import (
	"context"
	"fmt"

	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/sysctls"
	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/nftables/internal/form"
)

// lookAtSysctls notes drift in an observation if the sysctl route_localnet is off and should be on.
func (b *backend) lookAtSysctls(ctx context.Context, o *backends.Observation) error {
	r := o.Table.Rules()
	drift, err := b.kernel.sysctls.Drift(ctx, &b.pl.Sysctls, sysctls.Loopback(&r))
	if err != nil {
		b.observed = false
		return fmt.Errorf("nftables: observe: %w", err)
	}

	o.Drift = append(o.Drift, drift...)
	return nil
}

// settings reads the settings of a table of any layout, and the records of earlier values of
// sysctls.
func (b *backend) settings(ctx context.Context) (lines []string, records map[string]string,
	err error) {
	q := nft.Query{Conn: b.kernel.reader.Conn, Family: nft.IPv4, Table: b.pl.Table}
	lines, err = q.Comments(ctx, form.SetSettings)
	return lines, sysctls.ParseRecords(lines), err
}

// restoreSysctls restores the sysctl before the tables are deleted.
func (b *backend) restoreSysctls(ctx context.Context) error {
	lines, records, err := b.settings(ctx)
	if err != nil {
		return err
	}
	s := b.pl.Sysctls.Read(records, len(lines) > 0)
	return b.kernel.sysctls.Restore(ctx, s.Plan(nil))
}

// resumeSysctls turns the sysctl on again if the tables could not be deleted and still need it.
func (b *backend) resumeSysctls(ctx context.Context) error {
	_, records, err := b.settings(ctx)
	if _, needed := records[sysctls.RouteLocalnet]; needed && err == nil {
		err = b.kernel.sysctls.Values.Write(ctx, sysctls.RouteLocalnet, "1")
	}
	return err
}
