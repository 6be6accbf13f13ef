-- glidemq_version: return the version of the protocol's library.   KEYS none (one for routing is accepted)   -> '93'
-- glidemq_tryLock: acquire a lock.   KEYS 1 lock   ARGV 1 token, 2 ttl ms (1000)   -> 1 acquired, 0 held by another
-- owner
-- glidemq_unlock: release it.        KEYS 1 lock   ARGV 1 token   -> 1 released, 0 the token does not match
-- glidemq_renewLock: renew it.       KEYS 1 lock   ARGV 1 token, 2 ttl ms (1000)   -> 1 renewed, 0 the token does not
-- match

-- Not guarded: a client that gets an error here loads its own library instead.
G.export('version', { 'no-writes' }, function() return G.VERSION end, true)

G.export('tryLock', { 'allow-oom' }, function(keys, args)
  return G.lock(keys[1], args[1], G.text(G.num(args[2], 1000)))
end)

G.export('unlock', { 'allow-oom' }, function(keys, args) return G.unlock(keys[1], args[1]) end)

G.export('renewLock', { 'allow-oom' }, function(keys, args)
  return G.renew(keys[1], args[1], G.text(G.num(args[2], 1000)))
end)
