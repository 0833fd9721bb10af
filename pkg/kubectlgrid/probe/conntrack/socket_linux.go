package conntrack

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// connected returns where the socket that is bound to source is connected to, by the kernel's table of sockets: a
// program of BPF that translates addresses when a socket connects, as Cilium's do, also makes getpeername(2) return the
// address that was asked for. It reports false if the socket no longer exists.
func connected(source netip.AddrPort) (netip.AddrPort, bool, error) {
	name := "/proc/self/net/tcp"
	if source.Addr().Is6() {
		name = "/proc/self/net/tcp6"
	}
	table, err := os.Open(name)
	if err != nil {
		return netip.AddrPort{}, false, fmt.Errorf("asking for the table of sockets: %w", err)
	}
	defer table.Close()
	return findSocket(table, source)
}

// findSocket looks for the socket that is bound to source.
func findSocket(table io.Reader, source netip.AddrPort) (netip.AddrPort, bool, error) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 {
			continue
		}
		if local, ok := parseSocket(fields[1]); !ok || local != source {
			continue
		}
		if remote, ok := parseSocket(fields[2]); ok {
			return remote, true, nil
		}
	}
	return netip.AddrPort{}, false, lines.Err()
}

// parseSocket parses an address as the table has it: words of four bytes, each in the machine's order, and the port.
func parseSocket(text string) (netip.AddrPort, bool) {
	address, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	number, portErr := strconv.ParseUint(port, 16, 16)
	if err != nil || portErr != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	var ordered []byte
	for word := range slices.Chunk(raw, 4) {
		ordered = binary.NativeEndian.AppendUint32(ordered, binary.BigEndian.Uint32(word))
	}
	parsed, ok := netip.AddrFromSlice(ordered)
	return netip.AddrPortFrom(parsed, uint16(number)), ok
}
