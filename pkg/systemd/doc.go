// Package systemd notifies systemd, for a unit with Type=notify: the program serves, it is alive, this is its state, it
// stops. Without systemd, as in a container, it does nothing.
package systemd
