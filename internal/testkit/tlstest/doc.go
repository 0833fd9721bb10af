// Package tlstest has certification authorities for unit tests. Their certificates are for 127.0.0.1 and last an hour.
//
// Only tests import it.
package tlstest
