// Package monitoring loads what manifests/monitoring ships into Prometheus' own code: the alerts into its rule manager,
// the dashboard's queries into its engine, and the scrape configurations into its scraper. It is a module of its own,
// so that Prometheus and what it needs are nobody else's dependencies.
package monitoring
