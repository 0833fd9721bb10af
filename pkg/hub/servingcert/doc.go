// Package servingcert makes the serving certificate of an aggregated API server. All replicas share it by a Secret,
// renew it in time, and let the API server trust it by the caBundle of the APIService. No authority outside is needed,
// because only the API server's aggregation connects.
//
// The hub uses it where it is given no certificate of somebody else's.
package servingcert
