// Package systemd notifies systemd, for a unit with Type=notify, that the program is ready, alive or stopping, and of
// its status. Without systemd, as in a container, it does nothing.
package systemd
