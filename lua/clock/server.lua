-- Return the server's time in epoch milliseconds.
-- TIME does not change within one call, so every step of a call sees the same time.
local TIME = G.rows.time

G.now = function(_)
  local t = redis.call('TIME')
  return t[TIME.seconds] * 1000 + math.floor(t[TIME.microseconds] / 1000)
end
