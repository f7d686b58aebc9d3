package sqlitelock

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// thisMachine returns the boot id and the boot clock of the running kernel.
func thisMachine() (machine, error) {
	raw, err := os.ReadFile(bootIDFile)
	id := strings.TrimSpace(string(raw))
	if err == nil && id == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return machine{}, fmt.Errorf("the boot id cannot be read from %s: %w; want Linux with /proc mounted", bootIDFile, err)
	}
	offset, err := timeNamespaceOffset()
	if err != nil {
		return machine{}, err
	}
	now := func() (int64, error) {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			return 0, fmt.Errorf("CLOCK_BOOTTIME cannot be read: %w", err)
		}
		return ts.Nano() - offset, nil
	}
	_, err = now()
	return machine{bootID: id, now: now}, err
}

// timeNamespaceOffset is what this process's time namespace adds to the boot
// clock. Without taking it off, two containers would disagree about every end.
func timeNamespaceOffset() (int64, error) {
	const file = "/proc/self/timens_offsets"
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // a kernel without time namespaces
	}
	if err != nil {
		return 0, fmt.Errorf("the offsets of the time namespace cannot be read: %w", err)
	}
	offset, err := parseOffset(raw)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return offset, nil
}

// parseOffset finds the line "boottime SECONDS NANOSECONDS".
func parseOffset(raw []byte) (int64, error) {
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var name string
		var seconds, nanos int64
		_, err := fmt.Sscan(lines.Text(), &name, &seconds, &nanos)
		if name != "boottime" && name != "7" { // 7 is CLOCK_BOOTTIME, how the first kernels named it
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("line %q: %w; want boottime SECONDS NANOSECONDS", lines.Text(), err)
		}
		return seconds*int64(time.Second) + nanos, nil
	}
	return 0, errors.New("no line for boottime")
}

// createFile makes an empty file that only its owner may use, durably, unless
// there is one. It never holds a descriptor of the file: closing one would drop
// the POSIX locks that SQLite has on the same file in this process.
func createFile(path, folder string) error {
	err := unix.Mknod(path, unix.S_IFREG|0o600, 0)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return err
	}
	dir, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// writable reports why path cannot be read and written by this process.
func writable(path string) error { return unix.Access(path, unix.R_OK|unix.W_OK) }

// onNetwork names the network file system that path is on. There another
// machine, with a boot clock of its own, could open the same file.
func onNetwork(path string) (string, bool) {
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) != nil {
		return "", false
	}
	name, found := map[uint32]string{
		unix.NFS_SUPER_MAGIC:  "NFS",
		unix.SMB_SUPER_MAGIC:  "SMB",
		unix.SMB2_SUPER_MAGIC: "SMB",
		unix.CIFS_SUPER_MAGIC: "SMB",
		unix.CEPH_SUPER_MAGIC: "Ceph",
		unix.AFS_SUPER_MAGIC:  "AFS",
		unix.CODA_SUPER_MAGIC: "Coda",
	}[uint32(fs.Type)]
	return name, found
}
