package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/coreos/go-semver/semver"
)

// Check asks every endpoint of the client for its version, and returns one sentence
// for each version that may end living leases (see the package's comment). An
// endpoint that does not answer is passed over; the error is not nil when none
// does. It needs no privileges.
func (c *Coordinator) Check(ctx context.Context) (warnings []string, err error) {
	endpoints := c.client.Endpoints()
	versions, errs := make([]string, len(endpoints)), make([]error, len(endpoints))
	var all sync.WaitGroup
	for i, endpoint := range endpoints {
		all.Go(func() {
			answer, err := c.client.Status(ctx, endpoint)
			if errs[i] = err; err == nil {
				versions[i] = answer.Version
			}
		})
	}
	all.Wait()
	seen := map[string]bool{"": true}
	for _, version := range versions {
		if !seen[version] && endsLivingLeases(version) {
			warnings = append(warnings, fmt.Sprintf("etcd %s may end leases that are in use when a leader wakes up that was frozen; upgrade to 3.4.31, 3.5.13 or newer", version))
		}
		seen[version] = true
	}
	if len(seen) == 1 {
		return nil, fmt.Errorf("etcdlock: check: %w", errors.Join(errs...))
	}
	return warnings, nil
}

// endsLivingLeases is about https://github.com/etcd-io/etcd/pull/16822, which is in
// the versions that Check names. A version that cannot be read is taken for a newer one.
func endsLivingLeases(version string) bool {
	v, err := semver.NewVersion(version)
	if err != nil {
		return false
	}
	switch {
	case v.Major != 3:
		return v.Major < 3
	case v.Minor == 4:
		return v.Patch < 31
	case v.Minor == 5:
		return v.Patch < 13
	}
	return v.Minor < 4
}
