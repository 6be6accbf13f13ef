-- version, lock, unlock, renew: leader locks for tasks that one process runs for all.
-- version: KEYS none (or one, for routing)   -> the library's name
-- lock:    KEYS 1 lock key   ARGV 1 token, 2 ttl ms   -> 1 acquired, 0 held by another owner
-- unlock:  KEYS 1 lock key   ARGV 1 token   -> 1 released, 0 the token does not match
-- renew:   KEYS 1 lock key   ARGV 1 token, 2 ttl ms   -> 1 renewed, 0 the token does not match

G.export('version', { 'no-writes' }, function() return G.VERSION end)

G.export('lock', { 'allow-oom' }, function(key, r) return G.lock(key, r.token, r.ttl) end)

G.export('unlock', { 'allow-oom' }, function(key, r) return G.unlock(key, r.token) end)

G.export('renew', { 'allow-oom' }, function(key, r) return G.renew(key, r.token, r.ttl) end)
