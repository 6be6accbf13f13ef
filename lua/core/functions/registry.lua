-- registry_add, registry_set, registry_touch: write keys that belong to no queue. These are functions because a bare
-- command with one key would create the key at the target of a migrating slot; a call with two declared keys returns
-- TRYAGAIN.
-- registry_add: KEYS 1 set          ARGV 1 packed members                        -> number of new members
-- registry_set: KEYS 1 hash         ARGV 1 packed {field, value, ...}            -> number of new fields
-- registry_touch: KEYS 1 sorted set   ARGV 1 packed {member, score, 'GT'|'NX', ttl ms; 0 = unchanged}   -> 1
-- Bound: the members given, 1,000 per command.
-- version, lock, unlock, renew: leader locks for tasks that one process runs for all.
-- version: KEYS none (or one, for routing)   -> the library's name
-- lock:    KEYS 1 lock key   ARGV 1 token, 2 ttl ms   -> 1 acquired, 0 held by another owner
-- unlock:  KEYS 1 lock key   ARGV 1 token   -> 1 released, 0 the token does not match
-- renew:   KEYS 1 lock key   ARGV 1 token, 2 ttl ms   -> 1 renewed, 0 the token does not match

G.export('registry_add', { 'allow-oom' }, function(key, r) return G.in_parts('SADD', key, r.members) end)

G.export('registry_set', { 'allow-oom' }, function(key, r) return G.in_parts('HSET', key, r.fields) end)

G.export('registry_touch', { 'allow-oom' }, function(key, r)
  redis.call('ZADD', key, r.mode == 'GT' and 'GT' or 'NX', G.int(r.score), r.member)
  if r.ttl > 0 then redis.call('PEXPIRE', key, G.int(r.ttl)) end
  return 1
end)

G.export('version', { 'no-writes' }, function() return G.VERSION end)

G.export('lock', { 'allow-oom' }, function(key, r) return G.claim(key, r.token, r.ttl) end)

G.export('unlock', { 'allow-oom' }, function(key, r) return G.unlock(key, r.token) end)

G.export('renew', { 'allow-oom' }, function(key, r) return G.renew(key, r.token, r.ttl) end)
