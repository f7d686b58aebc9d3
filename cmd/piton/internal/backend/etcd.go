package backend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/pitonlock/piton/etcd/etcdlock"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const etcdForm = "etcd://USER:PASSWORD@HOST:2379,HOST:2379 (etcds:// for TLS, with ?cacert=FILE&cert=FILE&key=FILE as etcdctl has them)"

// etcdLate is how long etcd may go on with a lease that has ended: it looks twice a second.
const etcdLate = time.Second

func (b *Backend) openEtcd(ctx context.Context, raw string) error {
	cfg, err := etcdURL(raw)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel()
	// The client asks again and again where nobody listens, and says "in time" then.
	if err := anyListens(ctx, cfg.Endpoints); err != nil {
		return unreachable("coordinator", b.Redacted, err)
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return unreachable("coordinator", b.Redacted, err)
	}
	c, err := etcdlock.New(client)
	if err == nil {
		_, err = client.Get(ctx, "piton/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	}
	if err != nil {
		_ = client.Close()
		if errors.Is(err, context.DeadlineExceeded) { // which hides the transport's trouble
			err = &notEtcdError{err}
		}
		return unreachable("coordinator", b.Redacted, err)
	}
	b.Warnings, _ = c.Check(ctx) // a user that may not ask has no use for them
	b.Traces = etcdTraces{client}
	b.Late = etcdLate
	b.Coordinator, b.Close = c, client.Close
	return nil
}

// OpenEtcd returns a client of the etcd at raw. Whether anybody answers there is not
// looked at. A mistake in raw is a [*URLError].
func OpenEtcd(raw string) (*clientv3.Client, error) {
	cfg, err := etcdURL(raw)
	if err != nil {
		return nil, err
	}
	return clientv3.New(cfg)
}

func etcdURL(raw string) (clientv3.Config, error) {
	cfg, err := etcdConfig(raw)
	var mistake *URLError
	if err != nil && !errors.As(err, &mistake) {
		err = &URLError{fmt.Sprintf("coordinator %s: %s; write %s", Redact(raw), reason(err), etcdForm)}
	}
	return cfg, err
}

func etcdConfig(raw string) (clientv3.Config, error) {
	cfg := clientv3.Config{
		DialTimeout: 2 * time.Second,
		// A member that is frozen or cut off is given up after 12 s; no server lets
		// clients ask more often than that.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
		Logger: zap.NewNop(), // stderr belongs to the command
	}
	u, hosts, err := splitHosts("coordinator", raw, "2379")
	if err != nil {
		return cfg, err
	}
	cfg.Endpoints = hosts
	cfg.Username = u.User.Username()
	cfg.Password, _ = u.User.Password()
	query := u.Query()
	if u.Scheme == "etcds" {
		info := transport.TLSInfo{TrustedCAFile: query.Get("cacert"), CertFile: query.Get("cert"), KeyFile: query.Get("key")}
		cfg.TLS = &tls.Config{}
		if !info.Empty() || info.TrustedCAFile != "" {
			if cfg.TLS, err = info.ClientConfig(); err != nil {
				return cfg, err
			}
		}
		query.Del("cacert")
		query.Del("cert")
		query.Del("key")
	}
	switch {
	case u.Path != "" && u.Path != "/":
		return cfg, fmt.Errorf("etcd has no database %s", strings.TrimPrefix(u.Path, "/"))
	case len(query) > 0:
		return cfg, fmt.Errorf("it has the options ?%s, which etcd:// does not know", query.Encode())
	case (cfg.Username == "") != (cfg.Password == ""):
		return cfg, errors.New("of user and password one is missing")
	}
	return cfg, nil
}

// notEtcdError is a peer that accepts connections and answers no request.
type notEtcdError struct{ err error }

func (e *notEtcdError) Error() string {
	return "it accepts connections, but answers no request: " + e.err.Error()
}
func (e *notEtcdError) Unwrap() error { return e.err }

// anyListens returns nil as soon as one of the addresses accepts a connection.
func anyListens(ctx context.Context, addresses []string) error {
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel() // ends the dials that are still under way
	answers := make(chan error, len(addresses))
	for _, address := range addresses {
		go func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				err = conn.Close()
			}
			answers <- err
		}()
	}
	var errs []string
	var last error
	for range addresses {
		if last = <-answers; last == nil {
			return nil
		}
		errs = append(errs, last.Error())
	}
	if len(errs) == 1 {
		return last
	}
	return fmt.Errorf("%s, %w", strings.Join(errs[:len(errs)-1], ", "), last)
}

type etcdTraces struct{ client *clientv3.Client }

// The keys of locks are described in package etcdlock.
func etcdKeys(prefix string) [2]string {
	return [2]string{"piton/lock/" + prefix, "piton/offset/" + prefix}
}

func (t etcdTraces) Kept(ctx context.Context, prefix string) (int, error) {
	kept := 0
	for _, key := range etcdKeys(prefix) {
		answer, err := t.client.Get(ctx, key, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		kept += int(answer.Count)
	}
	return kept, nil
}

// Sweep leaves the etcd leases of locks that are held: without a key they only end.
func (t etcdTraces) Sweep(ctx context.Context, prefix string) error {
	for _, key := range etcdKeys(prefix) {
		if _, err := t.client.Delete(ctx, key, clientv3.WithPrefix()); err != nil {
			return err
		}
	}
	return nil
}
