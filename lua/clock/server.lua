-- The clock of the library: the server's own, in epoch milliseconds.
-- TIME stands still inside one call, so every step of a call sees the same moment.
G.now = function(_)
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
