// Package dashboard tests the page of kubectl grid dashboard in a headless Chromium, on a real control plane with the
// controller: what the page shows is what the other commands of kubectl grid print, changes appear within a second,
// and axe finds no barrier, in light and in dark.
//
// It needs Debian's package chromium, and axe-core in axe/node_modules: `make test-e2e` installs both.
// COMPONENTS_BIN, CONTROLLER_BIN and KUBECTL_GRID_BIN are the binaries' paths (default: bin/ of the repository). With
// DASHBOARD_SHOTS=DIR the tests leave screenshots there, and with DASHBOARD_PICTURE=1 they write docs/dashboard.png,
// which the README shows.
package dashboard
