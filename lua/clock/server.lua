-- Return the server's time in epoch milliseconds.
-- TIME does not change within one call, so every step of a call sees the same time.
G.now = function(_)
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
