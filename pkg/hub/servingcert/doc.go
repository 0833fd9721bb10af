// Package servingcert makes the serving certificate of an aggregated API server. All replicas share it through a
// Secret, renew it in time, and make the API server trust it through the caBundle of the APIService. No external
// authority is needed, because only the API server's aggregation layer connects.
//
// The hub uses it unless it is given a certificate.
package servingcert
