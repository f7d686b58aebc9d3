package backend

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// splitHosts takes a URL of several hosts apart, which net/url does not know:
// scheme://USER:PASSWORD@HOST[:PORT][,HOST[:PORT]...]/PATH?OPTIONS. The URL that is
// returned has the first host; hosts are all of them with their ports.
func splitHosts(role, raw, defaultPort string) (u *url.URL, hosts []string, err error) {
	head, list, tail := cutHosts(raw)
	scheme, _, _ := strings.Cut(raw, "://")
	seen := map[string]bool{}
	for host := range strings.SplitSeq(list, ",") {
		one, err := parse(role, head+host+tail)
		if err != nil {
			return nil, nil, err
		}
		if one.Hostname() == "" {
			return nil, nil, &URLError{fmt.Sprintf("%s %s: a host is missing; write %s://HOST:%s,HOST:%[4]s", role, Redact(raw), scheme, defaultPort)}
		}
		port := one.Port()
		if port == "" {
			port = defaultPort
		}
		address := net.JoinHostPort(one.Hostname(), port)
		if seen[address] {
			return nil, nil, &URLError{fmt.Sprintf("%s %s names %s twice; name each server once", role, Redact(raw), address)}
		}
		seen[address] = true
		hosts = append(hosts, address)
		if u == nil {
			u = one
		}
	}
	return u, hosts, nil
}

// cutHosts returns what is before the hosts, the hosts, and what is behind them.
func cutHosts(raw string) (head, hosts, tail string) {
	begin := strings.Index(raw, "://")
	if begin < 0 {
		return raw, "", ""
	}
	begin += len("://")
	end := len(raw)
	if length := strings.IndexAny(raw[begin:], "/?#"); length >= 0 {
		end = begin + length
	}
	begin += strings.LastIndexByte(raw[begin:end], '@') + 1
	return raw[:begin], raw[begin:end], raw[end:]
}

// firstHost is raw without its further hosts.
func firstHost(raw string) string {
	head, hosts, tail := cutHosts(raw)
	first, _, _ := strings.Cut(hosts, ",")
	return head + first + tail
}
