-- glidemq_version   KEYS none (one for routing is accepted)   -> '93'
-- glidemq_tryLock   KEYS 1 lock   ARGV 1 token, 2 ttl ms (1000)   -> 1 acquired, 0 held by another
-- glidemq_unlock    KEYS 1 lock   ARGV 1 token   -> 1 released, 0 was not ours
-- glidemq_renewLock KEYS 1 lock   ARGV 1 token, 2 ttl ms (1000)   -> 1 prolonged, 0 was not ours
local W = G.W

G.export('version', { 'no-writes' }, function() return G.VERSION end)

G.export('tryLock', { 'allow-oom' }, function(keys, args)
  return G.lock(keys[1], args[1], W.text(W.num(args[2], 1000)))
end)

G.export('unlock', { 'allow-oom' }, function(keys, args) return G.unlock(keys[1], args[1]) end)

G.export('renewLock', { 'allow-oom' }, function(keys, args)
  return G.renew(keys[1], args[1], W.text(W.num(args[2], 1000)))
end)
